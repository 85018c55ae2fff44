"""Masked sums: the server learns the sum of the sites' numbers and of no site its own.

After Bonawitz et al. 2017 (CCS, doi:10.1145/3133956.3133982) with their signed consistency check,
and, where sites are many, a sparser graph after Bell et al. 2020 (CCS, eprint 2020/704). The
protocol's page is docs/MASKED_SUMS.md. Pure functions and frozen values: no files, no sockets.

`context` says which sum it is, `fixed_point` makes words of numbers, `keys` has secrets and
signatures, `masking` the masks, `secret_sharing` is Shamir's, `neighbour_graph` says who masks with
whom. `site_session` has a site's five steps, `server_session` the server's part, and
`simulated_keys` the keys of a simulation, which follow from its seed.
"""
