"""UM-pFSSL: every site chooses helpers among its peers (docs/reference/equations.md)."""
