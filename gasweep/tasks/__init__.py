"""What is trained: the Task contract and the shipped tasks."""
