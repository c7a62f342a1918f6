"""The second half of the repositories."""

from small_repository import repository

MORE = [
    repository(
        "bisect",
        """
        def find(values, wanted):
            low, high = 0, len(values) - 1
            while low < high:
                middle = (low + high) // 2
                if values[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            return low if values[low] == wanted else None
        """,
        ("if values[low]", "if values and values[low]"),
        ("high = middle", "high = middle - 1"),
        """
        from it import find


        def test_found():
            assert [find([1, 3, 5, 7], each) for each in (1, 3, 5, 7)] == [0, 1, 2, 3]


        def test_first_of_equals():
            assert find([1, 2, 2, 2, 3], 2) == 1
        """,
        """
        def test_nothing_there():
            assert find([], 1) is None
        """,
    ),
    repository(
        "fraction",
        """
        def add(one, two):
            above = one[0] * two[1] + two[0] * one[1]
            below = one[1] * two[1]
            divisor, rest = above, below
            while rest:
                divisor, rest = rest, divisor % rest
            return above // divisor, below
        """,
        ("above // divisor, below", "above // divisor, below // divisor"),
        ("above // divisor, below", "above, below // divisor"),
        """
        from it import add


        def test_nothing_in_common():
            assert add((1, 2), (1, 3)) == (5, 6)


        def test_whole():
            assert add((1, 1), (2, 1)) == (3, 1)
        """,
        """
        def test_in_lowest_terms():
            assert add((1, 6), (1, 6)) == (1, 3)


        def test_to_nothing():
            assert add((1, 2), (-1, 2)) == (0, 1)
        """,
    ),
    repository(
        "path",
        """
        def normal(path):
            parts = []
            for part in path.split("/"):
                if part == "..":
                    parts.pop()
                elif part not in ("", "."):
                    parts.append(part)
            return "/" + "/".join(parts)
        """,
        ("            parts.pop()\n", "            parts = parts[:-1]\n"),
        ('part == ".."', 'part == "..." and parts'),
        """
        from it import normal


        def test_up():
            assert normal("/a/b/../c") == "/a/c"


        def test_dots_and_slashes():
            assert normal("//a/./b/") == "/a/b"
        """,
        """
        def test_above_the_root():
            assert normal("/../a") == "/a"


        def test_only_up():
            assert normal("/..") == "/"
        """,
    ),
    repository(
        "wrap",
        """
        def wrap(text, width):
            lines, line = [], ""
            for word in text.split():
                if line and len(line) + len(word) > width:
                    lines.append(line)
                    line = word
                else:
                    line = f"{line} {word}" if line else word
            return lines + [line]
        """,
        ("len(line) + len(word) > width", "len(line) + 1 + len(word) > width"),
        ("> width", ">= width - 1"),
        """
        from it import wrap


        def test_short():
            assert wrap("a b", 10) == ["a b"]


        def test_long_word():
            assert wrap("abcdef", 3) == ["abcdef"]
        """,
        """
        def test_space_counts():
            assert wrap("ab cd", 4) == ["ab", "cd"]


        def test_just_fits():
            assert wrap("ab cd", 5) == ["ab cd"]
        """,
        ("test_just_fits",),
    ),
    repository(
        "runs",
        """
        def encode(text):
            runs = []
            for letter in text:
                if runs and runs[-1][0] == letter:
                    runs[-1] = (letter, runs[-1][1] + 1)
                else:
                    runs.append((letter, 1))
            return "".join(f"{count}{letter}" for letter, count in runs)


        def decode(text):
            return "".join(text[i + 1] * int(text[i]) for i in range(0, len(text), 2))
        """,
        (
            'return "".join(text[i + 1] * int(text[i]) for i in range(0, len(text), 2))',
            "import re\n"
            '    return "".join(c * int(n) for n, c in re.findall(r"(\\d+)(\\D)", text))',
        ),
        ("range(0, len(text), 2)", "range(1, len(text), 2)"),
        """
        from it import decode, encode


        def test_encode():
            assert encode("aab") == "2a1b"


        def test_decode():
            assert decode("2a1b") == "aab"
        """,
        """
        def test_ten():
            assert decode(encode("a" * 10)) == "a" * 10


        def test_nothing():
            assert decode(encode("")) == ""
        """,
        ("test_nothing",),
    ),
    repository(
        "leap",
        """
        def days(year):
            return 366 if year % 4 == 0 and year % 100 else 365
        """,
        ("year % 4 == 0 and year % 100", "year % 4 == 0 and (year % 100 or year % 400 == 0)"),
        ("year % 4 == 0 and year % 100", "year % 4 == 0"),
        """
        from it import days


        def test_common():
            assert days(2023) == 365


        def test_leap():
            assert days(2024) == 366
        """,
        """
        def test_four_centuries():
            assert days(2000) == 366


        def test_century():
            assert days(1900) == 365
        """,
        ("test_century",),
    ),
]
