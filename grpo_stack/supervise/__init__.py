"""Each container looks after itself: a child process, what it is watched by, and how it is started again."""
