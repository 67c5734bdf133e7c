"""What more than one test file needs."""
