"""Changes of files that know nothing of their format."""

from __future__ import annotations

from random import Random

_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x08, 0x0A, 0x12, 0x3A, 0x20)


def changed(random: Random, content: bytes, other: bytes) -> bytes:
    """Return the content after one to four changes; a part of `other` may come into it."""
    made = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(made) + 1)
        match random.randrange(6):
            case 0:
                del made[at:]
            case 1:
                del made[at : at + random.choice((1, 2, 8, 64))]
            case 2:
                made[at:at] = bytes(random.choice(_INTERESTING) for _ in range(random.randint(1, 8)))
            case 3:
                start = random.randrange(len(other) + 1)
                made[at : at + random.choice((0, 16))] = other[start : start + random.choice((4, 64, 1024))]
            case 4 if at < len(made):
                made[at] ^= 1 << random.randrange(8)
            case _ if at < len(made):
                made[at] = random.choice((*_INTERESTING, random.randrange(256)))
    return bytes(made)
