"""The scalar oracle of branchrt/Edit-v0, in plain Python and NumPy."""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import ne
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from branchrt_gym.envs.edit_render import diff, draw
from branchrt_gym.errors import NotResetError
from branchrt_gym.oracle import Oracle, bounded, fold, hashed_entries, within

__all__ = ["EditContext", "EditOracle"]

INT31 = 2**31 - 1
FIRST, LETTERS = 32, 95  # the printable ASCII bytes

Observation = dict[str, Any]  # arrays


@dataclass(frozen=True, eq=False)
class EditContext:
    """What the branches of a context share.

    Attributes:
        document: `[width] uint8`, what every episode starts from; read-only.
        target: `[width] uint8`, what it should become; read-only.
        positions: Where each span begins, ascending.
        proposals: For each span what may be put there, each as long as the span.
        distance: Bytes in which document and target differ.
    """

    document: NDArray[np.uint8]
    target: NDArray[np.uint8]
    positions: tuple[int, ...]
    proposals: tuple[tuple[bytes, ...], ...]
    distance: int = field(init=False)

    def __post_init__(self) -> None:
        """Checks the spans, and copies the texts if somebody could still write to them."""
        for name in ("document", "target"):
            given = getattr(self, name)
            if given.dtype != np.uint8 or given.shape != (len(self.document),):
                raise ValueError(
                    f"`{name}` is {given.dtype} of shape {given.shape}; expected uint8 of shape "
                    "(width,), document and target alike"
                )
            if given.flags.writeable:
                given = given.copy()
                given.flags.writeable = False
                object.__setattr__(self, name, given)
        if len(self.positions) != len(self.proposals):
            raise ValueError(
                f"`proposals` are for {len(self.proposals)} spans; expected "
                f"{len(self.positions)}, as there are `positions`"
            )
        free = 0
        for number, begin in enumerate(self.positions):
            sizes = {len(proposal) for proposal in self.proposals[number]}
            end = begin + max(sizes, default=0)
            if len(sizes) != 1 or not free <= begin < end <= len(self.document):
                raise ValueError(
                    f"span {number} is at {begin} with proposals of {sorted(sizes)} bytes; "
                    f"expected one length, at least 1, from {free} on within {len(self.document)}"
                )
            free = end
        distance = int(np.count_nonzero(self.document != self.target))
        object.__setattr__(self, "distance", distance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by constructor, since arrays come out of a pickle writeable."""
        return type(self), (self.document, self.target, self.positions, self.proposals)


class EditOracle(Oracle[Observation, int | np.int64]):
    """A large document of which a few spans have to be replaced by the right proposals.

    The shape of an agent that edits files. A context is a document of `width` bytes and a target
    that differs from it in `spans` disjoint spans of up to `span` bytes, in every byte of them. For
    each span there are `choices` proposals: one is what the target has there, the others are wrong
    in more and more of their bytes. A step puts one proposal in its place, over whatever the branch
    has there, so that a wrong one can be mended later. The episode is solved when the branch's
    text is the target. Whoever tries all proposals and keeps the best is there after `spans` steps;
    a branch that picks at random hardly ever is, since it spoils what it had.

    Actions, `Discrete(spans * choices)`: action `a` puts proposal `a % choices` into span
    `a // choices`.

    Observations, a dict: `cursor`, where the last edit began, `depth` and `distance`, the bytes
    in which text and target differ, each `int32[1]`; and the `window` bytes around the cursor of
    the branch's `text` and of the `target`, each `uint8[window]`.

    Rewards: by how much the step reduced the distance, an integer, below 0 for a step that spoils.
    Terminated at distance 0, which is `info["solved"]`; truncated after `depth` steps without it.
    The score is the sum of the rewards.

    The rules, exactly. `entry(q, i)` is number `i` of `hashed_entries(q, …)` and `fold` and
    `bounded` are those of `branchrt_gym.oracle`; `shifted(b, r) = 32 + (b - 32 + 1 +
    (r * 94 >> 16)) % 95` is another printable byte than `b`, for `r` in `0 .. 65535`; `k` is the
    context's 64-bit key; `s` is in `0 .. spans - 1`, `c` in `0 .. choices - 1`, and `j` counts the
    bytes of a span from 0.

        document byte i  = 32 + ((entry(k, i) >> 16) * 95 >> 16)
        length s         = 1 + bounded(fold(k, 4 * s), span)
        position s       = s * (width // spans)
                           + bounded(fold(k, 4 * s + 1), width // spans - length s + 1)
        right s          = bounded(fold(k, 4 * s + 2), choices)
        q(s)             = fold(k, 4 * s + 3)
        target byte j of span s = shifted(the document's, entry(fold(q(s), choices), j) >> 16)
        proposal c of span s: let e = (c - right s) modulo choices, q' = fold(q(s), c),
            h = entry(q', j) and t the target's byte. Where e > 0 and either
            (h % 65536) * choices >> 16 < e or j == bounded(fold(q', 0), length s),
            byte j is shifted(t, h >> 16), elsewhere t
        an episode starts with the document, cursor = bounded(fold(episode key, 0), width)
        after action a : cursor = position of span a // choices
        observed       : from byte min(max(cursor - window // 2, 0), width - window) on

    Args:
        width: Bytes of a document, in `1 .. 2**31 - 1`.
        spans: Spans in which a target differs, in `1 .. width`.
        span: Most bytes of a span, in `1 .. width // spans`.
        choices: Proposals for each span; there are at most `2**31 - 1` actions.
        depth: Steps of an episode, in `1 .. 2**31 - 1`.
        window: Bytes that an observation shows, in `1 .. width`.
        page_size: Bytes of a page in the batched form; means nothing here.
        render_mode: None, `"rgb_array"` or `"ansi"`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}  # noqa: RUF012
    branch_fields = ("cursor", "distance", "score")

    context: EditContext
    cursor: int
    distance: int
    score: int
    written: tuple[bytes, ...]  # what each span has; replaced, never changed, so forks share it

    def __init__(
        self,
        width: int = 262_144,
        spans: int = 16,
        span: int = 64,
        choices: int = 4,
        depth: int = 32,
        window: int = 64,
        page_size: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Checks the parameters; a context is made at the first reset."""
        self.width = within("width", width, 1, INT31)
        self.spans = within("spans", spans, 1, self.width)
        self.span = within("span", span, 1, self.width // self.spans)
        self.choices = within("choices", choices, 1, INT31 // self.spans)
        self.depth_limit = within("depth", depth, 1, INT31)
        self.window = within("window", window, 1, self.width)
        if page_size is not None:
            within("page_size", page_size, 1, INT31)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"`render_mode` is {render_mode!r}; expected None, 'rgb_array' or 'ansi'"
            )
        self.render_mode = render_mode
        self.action_space = Discrete(self.spans * self.choices)
        self.observation_space = Dict(
            cursor=Box(0, self.width - 1, (1,), np.int32),
            depth=Box(0, self.depth_limit, (1,), np.int32),
            distance=Box(0, self.width, (1,), np.int32),
            target=Box(0, 255, (self.window,), np.uint8),
            text=Box(0, 255, (self.window,), np.uint8),
        )

    def make_context(self, key: int) -> EditContext:
        """Hashes the document, places the spans, and makes their proposals."""
        letters = (hashed_entries(key, self.width) >> 16) * np.uint32(LETTERS) >> 16
        document = (FIRST + letters).astype(np.uint8)
        target = document.copy()
        stride = self.width // self.spans
        positions, proposals = [], []
        for s in range(self.spans):
            length = 1 + bounded(fold(key, 4 * s), self.span)
            begin = s * stride + bounded(fold(key, 4 * s + 1), stride - length + 1)
            right = bounded(fold(key, 4 * s + 2), self.choices)
            own = fold(key, 4 * s + 3)
            here = slice(begin, begin + length)
            hashed = hashed_entries(fold(own, self.choices), length)
            target[here] = _shifted(document[here], hashed >> np.uint32(16))
            proposals.append(
                tuple(
                    self._proposal(target[here], (c - right) % self.choices, fold(own, c))
                    for c in range(self.choices)
                )
            )
            positions.append(begin)
        document.flags.writeable = target.flags.writeable = False
        return EditContext(document, target, tuple(positions), tuple(proposals))

    def check_context(self, context: object) -> None:
        """Refuses what is not an `EditContext` of this width, with these spans and choices."""
        if not isinstance(context, EditContext):
            raise ValueError(f"`context` is a {type(context).__name__}; expected an EditContext")
        width, spans = len(context.document), len(context.positions)
        choices = sorted({len(offered) for offered in context.proposals})
        span = max((len(offered[0]) for offered in context.proposals), default=0)
        wanted = self.width, self.spans, [self.choices]
        if (width, spans, choices) != wanted or span > self.span:
            raise ValueError(
                f"`context` has {width} bytes and {spans} spans of up to {span} with {choices} "
                f"proposals; expected {self.width}, {self.spans}, {self.span} and {self.choices}, "
                "as this environment was made with"
            )

    def start(self) -> None:
        """Starts from the document, with the cursor where the episode's key says."""
        context = self.context
        self.written = tuple(
            context.document[begin : begin + len(proposals[0])].tobytes()
            for begin, proposals in zip(context.positions, context.proposals, strict=True)
        )
        self.cursor = bounded(fold(self.key, 0), self.width)
        self.distance, self.score = context.distance, 0

    def advance(self, action: int, key: int) -> tuple[int, bool, bool, bool]:
        """Puts a proposal into its span; no chance is involved."""
        s, c = divmod(action, self.choices)
        old, new = self.written[s], self.context.proposals[s][c]
        self.cursor = self.context.positions[s]
        wanted = self.context.target[self.cursor : self.cursor + len(new)].tobytes()
        reward = sum(map(ne, old, wanted)) - sum(map(ne, new, wanted))
        self.written = (*self.written[:s], new, *self.written[s + 1 :])
        self.distance -= reward
        self.score += reward
        solved = self.distance == 0
        return reward, solved, not solved and self.depth + 1 >= self.depth_limit, solved

    def observe(self) -> Observation:
        """Returns cursor, depth, distance, and what text and target have around the cursor."""
        first = min(max(self.cursor - self.window // 2, 0), self.width - self.window)
        return {
            "cursor": np.array([self.cursor], np.int32),
            "depth": np.array([self.depth], np.int32),
            "distance": np.array([self.distance], np.int32),
            "target": self.context.target[first : first + self.window].copy(),
            "text": self._read(first, first + self.window),
        }

    @property
    def text(self) -> NDArray[np.uint8]:
        """`[width] uint8`, the branch's whole text, in new memory."""
        return self._read(0, self.width)

    def render(self) -> Any:
        """Returns a `[200, 320, 3] uint8` picture, a text, or None, as `render_mode` says."""
        if self.render_mode is None:
            return None
        if not self._was_reset:
            raise NotResetError("`render` before the first reset; call `reset` first")
        picture = draw if self.render_mode == "rgb_array" else diff
        return picture(
            self.text,
            self.context.target,
            self.context.positions,
            [len(written) for written in self.written],
            cursor=self.cursor,
            score=self.score,
            distance=self.distance,
            depth=self.depth,
            depth_limit=self.depth_limit,
        )

    def _read(self, first: int, last: int) -> NDArray[np.uint8]:
        """Returns a part of the text: the document's bytes, and over them those of the spans."""
        seen = self.context.document[first:last].copy()
        positions = self.context.positions
        # One span that begins before may reach in.
        for s in range(max(bisect_left(positions, first) - 1, 0), bisect_left(positions, last)):
            begin, written = positions[s], self.written[s]
            low, high = max(begin, first), min(begin + len(written), last)
            if low < high:
                part = np.frombuffer(written, np.uint8)[low - begin : high - begin]
                seen[low - first : high - first] = part
        return seen

    def _proposal(self, target: NDArray[np.uint8], error: int, key: int) -> bytes:
        """Returns the proposal that is `error` away from the right one, which is error 0."""
        if not error:
            return target.tobytes()
        hashed = hashed_entries(key, len(target))
        wrong = (hashed.astype(np.int64) & 0xFFFF) * self.choices >> 16 < error
        wrong[bounded(fold(key, 0), len(target))] = True
        return np.where(wrong, _shifted(target, hashed >> np.uint32(16)), target).tobytes()


def _shifted(letters: NDArray[np.uint8], by: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Returns other printable bytes, by sixteen random bits each."""
    shift = 1 + (by * np.uint32(LETTERS - 1) >> 16)
    return (FIRST + (letters.astype(np.uint32) - FIRST + shift) % LETTERS).astype(np.uint8)
