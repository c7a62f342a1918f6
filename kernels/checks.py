"""The argument checks that the operations share, and the words of their errors."""

from torch import Tensor, dtype

__all__ = ["describe", "expect_tensor"]


def describe(value: object) -> str:
    """Says what an argument is: `torch.int64 of shape (4, 8)`, or `of type int`."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


def expect_tensor(
    name: str,
    value: object,
    dtypes: tuple[dtype, ...] | None,
    like: Tensor | None,
    meaning: str,
) -> None:
    """Refuses what is not a tensor of one of `dtypes`, on the device of `like`.

    Args:
        name: The argument's name, for the error's text.
        value: The argument.
        dtypes: What its dtype may be; any unless given.
        like: A tensor whose device it has to share; any unless given.
        meaning: The rest of the error's text: the shape expected, and what it stands for.

    Raises:
        TypeError: `value` is not a tensor.
        ValueError: Its dtype or device is another.
    """
    expected = f"{' or '.join(map(str, dtypes or ('a tensor',)))} {meaning}"
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` is {describe(value)}; expected {expected}")
    if dtypes and value.dtype not in dtypes:
        raise ValueError(f"`{name}` is {describe(value)}; expected {expected}")
    if like is not None and value.device != like.device:
        raise ValueError(
            f"`{name}` is on {str(value.device)!r}; expected {str(like.device)!r}, "
            "where the other tensors are"
        )
