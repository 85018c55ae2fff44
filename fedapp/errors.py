"""Errors a person can act on: each message names the thing, the rule it broke and the remedy."""


class FedAppError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(FedAppError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class DataError(FedAppError):
    """Images or labels are absent, damaged or not what the experiment declares."""


class ProtocolError(FedAppError):
    """A message or a model from another machine is not what the protocol allows."""


class StoreError(FedAppError):
    """A model or a record cannot be written to, or read from, the disk."""


class RunError(FedAppError):
    """A run cannot go on: too few replies, no sites, or a checkpoint of another experiment."""
