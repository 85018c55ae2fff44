"""Secure aggregation (masked sums): the server learns the sum of the sites' numbers, no site's own.

The protocol is that of Bonawitz et al. 2017 (CCS, doi:10.1145/3133956.3133982) with their signed
consistency check. With many sites it uses a sparser graph after Bell et al. 2020 (CCS, eprint
2020/704). docs/MASKED_SUMS.md describes it. All modules are pure functions and frozen values,
without files and sockets:

- `context`: which sum it is; every key and signature is bound to it;
- `fixed_point`: numbers as words modulo 2^64;
- `keys`: a site's secrets and signatures; `simulated_keys`: those of a simulation, from its seed;
- `masking`: the masks; `secret_sharing`: Shamir's scheme; `neighbour_graph`: who masks with whom;
- `site_session`: a site's five steps; `server_session`: the server's part.
"""
