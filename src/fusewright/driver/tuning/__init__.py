"""Which of several right files is written: the list of variants, what is predicted of them, how they are built and timed."""
