"""A key as it may stand in a file or a message: its bytes, in hexadecimal, or in base64 at each of three offsets."""

from base64 import b64encode, urlsafe_b64encode


def spellings(key: bytes) -> list[bytes]:
    """All ways to write `key`, of base64 the characters that do not depend on the bytes before and after it."""
    found = [key, key.hex().encode(), key.hex().upper().encode()]
    for encode in (b64encode, urlsafe_b64encode):
        for offset in range(3):
            whole = (offset + len(key)) // 3 * 3 - offset
            found.append(encode(bytes(offset) + key[:whole])[-(-offset * 4 // 3) :])
    return found
