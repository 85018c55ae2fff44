"""Masked sums: the server learns the sum of the sites' numbers and of no site its own.

After Bonawitz et al. 2017 (CCS, doi:10.1145/3133956.3133982) with their signed consistency check,
and, where sites are many, a sparser graph after Bell et al. 2020 (CCS, eprint 2020/704). The
protocol's page is docs/MASKED_SUMS.md. Pure functions and frozen values: no files, no sockets.

`context` (which sum it is), `words` (fixed point), `keys` (secrets, signatures), `masking`,
`shares` (Shamir), `graph` (who masks with whom), `session` (a site's five steps), `opening` (the
server's part), `simulated` (keys from the seed).
"""
