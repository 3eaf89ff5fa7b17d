"""What stands before a server that does not guard itself; its folder is all that the server's Python sees of ours."""
