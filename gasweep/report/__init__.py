"""Tables, plots and the HTML report; reads results and analysis only."""
