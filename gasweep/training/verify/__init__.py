"""`gasweep verify`: are the layouts of one effective batch really the same run? Loads torch on use only."""
