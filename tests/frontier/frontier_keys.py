"""Random keys as Python ints of 64 bits, written from their definition."""

BITS = 2**64 - 1
DOMAIN = 0x6272616E63687274
CONTEXT, EPISODE, FORK = 1 << 40, 2 << 40, 3 << 40


def mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & BITS
    return x ^ x >> 31


def fold(key: int, word: int) -> int:
    return mix64(key + (word + 1) * 0x9E3779B97F4A7C15 & BITS)


def bounded(x: int, n: int) -> int:
    return (x >> 32) * n >> 32


def signed(key: int) -> int:
    """The int64 of the same bits."""
    return key - 2**64 if key >> 63 else key


def context_key(seed: int) -> int:
    return fold(fold(DOMAIN, seed), CONTEXT)


def episode_key(seed: int, episode: int) -> int:
    return fold(fold(DOMAIN, seed), EPISODE + episode)


def child_key(key: int, forks: int, number: int, rng: str) -> int:
    """The key of a parent's child, by the forks the parent took part in before."""
    return key if rng == "shared" else fold(fold(key, FORK + forks), number)
