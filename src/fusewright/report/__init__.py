"""What was done, for people: the page, the table in the terminal, and `explain`."""
