"""The vectors are today's, and a reader of them alone, without this project's code, agrees."""

import hashlib
import json

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedapp.protocol.messages import SCHEMA
from tests.protocol.secure_aggregation.vectors import FILE, FORMAT, ROWS, text

VECTORS = json.loads(FILE.read_text())
SITES, PRIME = VECTORS["sites"], 2**255 - 19


def test_they_are_todays():
    assert FILE.read_text() == text()
    assert VECTORS["format"] == FORMAT == SCHEMA


def bound(*parts):
    run = (VECTORS["context"][k] for k in ("run", "identity", "experiment"))
    numbers = (VECTORS["context"][k] for k in ("round", "number", "attempt"))
    return json.dumps(["um-pfssl masked sum", *run, *numbers, *parts]).encode()


def derived(key, info, size=32):
    return HKDF(hashes.SHA256(), size, None, info).derive(key)


def secret_of(site, purpose):
    return bytes.fromhex(site["secret"]), bound(purpose, site["site"])


def shared(private, public, info):
    theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(public))
    return derived(private.exchange(theirs), info.encode())


def stream(key):
    made = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(24))
    return np.frombuffer(made, "<u8")


def box_key(site):
    return X25519PrivateKey.from_private_bytes(derived(*secret_of(site, "box")))


def mask_key(seed):
    return X25519PrivateKey.from_private_bytes(derived(seed, b"um-pfssl mask key"))


def test_announcements_and_digests():
    fields = []
    for site in SITES:
        told = site["announcement"]
        for which in ("own", "pairs"):
            seed = int.from_bytes(derived(*secret_of(site, which), 48)) % PRIME
            assert seed.to_bytes(32).hex() == site[f"{which}_seed"]
        assert box_key(site).public_key().public_bytes_raw().hex() == told["box"]
        mask = mask_key(bytes.fromhex(site["pairs_seed"]))
        assert mask.public_key().public_bytes_raw().hex() == told["mask"]
        own = hashlib.sha256(b"um-pfssl own mask" + bytes.fromhex(site["own_seed"]))
        assert own.hexdigest() == told["own"]
        said = bound("announce", site["site"], told["box"], told["mask"], told["own"])
        assert said.decode() == site["announced_text"]
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(site["signing_key"]))
        assert key.sign(said).hex() == told["signature"]
        fields.append([told[k] for k in ("site", "box", "mask", "own", "signer", "signature")])
    announced = hashlib.sha256(bound("announced", *fields)).hexdigest()
    assert announced == VECTORS["announced"]
    cohort = hashlib.sha256(bound("cohort", [0, 1, 2, 3], announced)).hexdigest()
    assert cohort == VECTORS["cohort"]
    masks = hashlib.sha256(bound("masks", cohort, VECTORS["question"])).hexdigest()
    assert masks == VECTORS["masks"]
    assert bound("confirm", cohort, VECTORS["survivors"]).decode() == VECTORS["confirmed_text"]
    for k, signature in VECTORS["confirmations"].items():
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SITES[int(k)]["signing_key"]))
        assert key.sign(VECTORS["confirmed_text"].encode()).hex() == signature


def test_words_and_masks():
    cohort = VECTORS["cohort"]
    for site in SITES:
        k = site["site"]
        words = np.rint(np.array(site["numbers"]) * 2**30).astype(np.int64).view(np.uint64)
        assert words.tolist() == site["words"]
        total = words + stream(
            derived(bytes.fromhex(site["own_seed"]), f"own mask {cohort}".encode())
        )
        private = mask_key(bytes.fromhex(site["pairs_seed"]))
        for other in SITES:
            if (j := other["site"]) == k:
                continue
            info = f"pair mask {VECTORS['masks']} {min(j, k)} {max(j, k)}"
            mask = stream(shared(private, other["announcement"]["mask"], info))
            total = total + mask if k < j else total - mask
        assert total.tolist() == site["masked"]


def test_boxes_hold_the_shares_that_were_opened():
    cohort = VECTORS["cohort"]
    for k, opened in VECTORS["opened"].items():
        here = box_key(SITES[int(k)])
        for site in SITES:
            info = f"box {cohort} {site['site']} {k}"
            key = shared(here, site["announcement"]["box"], info)
            text = AESGCM(key).decrypt(bytes(12), bytes.fromhex(site["boxes"][k]), None)
            lost = site["site"] not in VECTORS["survivors"]
            which, share = ("pairs", text[32:]) if lost else ("own", text[:32])
            assert opened[which][str(site["site"])] == share.hex()
            assert str(site["site"]) not in opened["own" if lost else "pairs"]


def test_three_shares_open_each_secret_and_the_sum():
    """Lagrange at 0; holder k has the polynomial's value at k + 1."""
    cohort, total = VECTORS["cohort"], np.array(VECTORS["masked_sum"], np.uint64)
    assert (
        total.tolist()
        == sum(np.array(SITES[k]["masked"], np.uint64) for k in VECTORS["survivors"]).tolist()
    )
    holders = [int(k) + 1 for k in VECTORS["opened"]]
    assert len(holders) == VECTORS["threshold"] == 3
    for site in SITES:
        k, lost = site["site"], site["site"] not in VECTORS["survivors"]
        which, secret = ("pairs", "pairs_seed") if lost else ("own", "own_seed")
        found = 0
        for x in holders:
            share = int(VECTORS["opened"][str(x - 1)][which][str(k)], 16)
            for y in holders:
                if y != x:
                    share = share * y * pow(y - x, -1, PRIME) % PRIME
            found = (found + share) % PRIME
        assert found.to_bytes(32).hex() == site[secret]
        if not lost:
            total = total - stream(derived(found.to_bytes(32), f"own mask {cohort}".encode()))
            continue
        for j in VECTORS["survivors"]:
            info = f"pair mask {VECTORS['masks']} {min(j, k)} {max(j, k)}"
            key = mask_key(found.to_bytes(32))
            mask = stream(shared(key, SITES[j]["announcement"]["mask"], info))
            total = total + mask if k < j else total - mask
    assert total.tolist() == VECTORS["sum"]
    expected = ROWS[VECTORS["survivors"]].sum(0)
    assert (total.view(np.int64) / 2**30).tolist() == VECTORS["sum_as_numbers"] == expected.tolist()
