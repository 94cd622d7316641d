"""What each word of the command line does: call, print, return the exit code.

What a command needs is imported when it runs, so that no command pays for another.
"""
