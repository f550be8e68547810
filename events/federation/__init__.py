"""Questions of other servers."""
