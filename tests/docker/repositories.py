"""Twelve small repositories."""

from more_repositories import MORE
from small_repository import repository

REPOSITORIES = [
    repository(
        "intervals",
        """
        def merge(intervals):
            merged = []
            for start, end in sorted(intervals):
                if merged and start < merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
                else:
                    merged.append((start, end))
            return merged
        """,
        ("start < merged", "start <= merged"),
        ("max(end, merged[-1][1])", "end"),
        """
        from it import merge


        def test_overlap():
            assert merge([(1, 4), (2, 6)]) == [(1, 6)]


        def test_contained():
            assert merge([(1, 9), (2, 3)]) == [(1, 9)]
        """,
        """
        def test_touching():
            assert merge([(1, 2), (2, 3)]) == [(1, 3)]


        def test_apart():
            assert merge([(5, 6), (1, 2)]) == [(1, 2), (5, 6)]
        """,
        ("test_apart",),
    ),
    repository(
        "roman",
        """
        VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


        def roman(text):
            total = 0
            for here, after in zip(text, text[1:]):
                value = VALUES[here]
                total += -value if value < VALUES[after] else value
            return total
        """,
        ("zip(text, text[1:])", 'zip(text, text[1:] + "I")'),
        ("value < VALUES", "value <= VALUES"),
        """
        import pytest
        from it import roman


        def test_unknown():
            with pytest.raises(KeyError):
                roman("IZ")


        def test_nothing():
            assert roman("") == 0
        """,
        """
        def test_last_counts():
            assert roman("III") == 3


        def test_less_before_more():
            assert roman("MCMXCIV") == 1994
        """,
    ),
    repository(
        "lru",
        """
        class Cache:
            def __init__(self, size):
                self.size, self.data = size, {}

            def get(self, key):
                return self.data.get(key)

            def put(self, key, value):
                self.data.pop(key, None)
                self.data[key] = value
                if len(self.data) > self.size:
                    del self.data[next(iter(self.data))]
        """,
        (
            "        return self.data.get(key)\n",
            "        if key in self.data:\n            self.data[key] = self.data.pop(key)\n"
            "        return self.data.get(key)\n",
        ),
        ("len(self.data) > self.size", "len(self.data) > self.size + 1"),
        """
        from it import Cache


        def test_keeps_at_most():
            cache = Cache(2)
            for key in "abc":
                cache.put(key, key)
            assert len(cache.data) == 2


        def test_put_again():
            cache = Cache(2)
            for key in "aba":
                cache.put(key, key)
            cache.put("c", "c")
            assert cache.get("b") is None and cache.get("a") == "a"
        """,
        """
        def test_used_stays():
            cache = Cache(2)
            cache.put("a", 1)
            cache.put("b", 2)
            assert cache.get("a") == 1
            cache.put("c", 3)
            assert cache.get("a") == 1 and cache.get("b") is None


        def test_miss_is_no_entry():
            cache = Cache(1)
            assert cache.get("a") is None and not cache.data
        """,
        ("test_miss_is_no_entry",),
    ),
    repository(
        "csvline",
        """
        def split(line):
            fields, field, quoted = [], "", False
            for letter in line:
                if letter == '"':
                    quoted = not quoted
                elif letter == "," and not quoted:
                    fields.append(field)
                    field = ""
                else:
                    field += letter
            return fields
        """,
        ("    return fields", "    return [*fields, field]"),
        ("and not quoted", "and quoted"),
        """
        from it import split


        def test_first_field():
            assert split("a,b")[0] == "a"


        def test_quotes():
            assert split('"a,b",c')[0] == "a,b"
        """,
        """
        def test_last_field():
            assert split("a,b") == ["a", "b"]


        def test_empty_fields():
            assert split(",") == ["", ""]
        """,
    ),
    repository(
        "slug",
        """
        def slug(title):
            words = "".join(c if c.isalnum() else " " for c in title.lower()).split(" ")
            return "-".join(words)
        """,
        ('.split(" ")', ".split()"),
        ('"-".join', '"_".join'),
        """
        from it import slug


        def test_words():
            assert slug("Two Words") == "two-words"


        def test_one():
            assert slug("One") == "one"
        """,
        """
        def test_runs_of_marks():
            assert slug("a -- b") == "a-b"


        def test_marks_at_ends():
            assert slug("(a)!") == "a"


        def test_nothing():
            assert slug("") == ""
        """,
        ("test_nothing",),
    ),
    repository(
        "rotate",
        """
        def rotate(rows):
            return [list(column) for column in zip(*rows)]
        """,
        ("zip(*rows)", "zip(*rows[::-1])"),
        ("zip(*rows)", "zip(*rows, *rows)"),
        """
        from it import rotate


        def test_one():
            assert rotate([[1]]) == [[1]]


        def test_shape():
            assert len(rotate([[1, 2, 3]])) == 3 and len(rotate([[1, 2, 3]])[0]) == 1
        """,
        """
        def test_clockwise():
            assert rotate([[1, 2], [3, 4]]) == [[3, 1], [4, 2]]


        def test_four_times():
            rows = [[1, 2, 3], [4, 5, 6]]
            assert rotate(rotate(rows)) == [[6, 5, 4], [3, 2, 1]]
        """,
    ),
    *MORE,
]
