"""How much of everything is measured: in full, quickly, and cut down to a model's positions."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cut:
    """A context.

    Attributes:
        tokens: Its length, N.
        degree: Segments, P; their length is a bucket, so that nothing is padded.
    """

    tokens: int
    degree: int

    def __str__(self) -> str:
        return f"N={self.tokens} P={self.degree}"

    def fitted(self, positions: int, query: int = 0) -> "Cut":
        """The context halved until full attention over it, and a query, fit the positions.

        So is the degree, as long as there is something to select from.
        """
        tokens, degree = self.tokens, self.degree
        while tokens + query > positions and tokens > 2 * _FEWEST:
            tokens, degree = tokens // 2, max(degree // 2, _FEWEST)
        return Cut(tokens, degree)


_FEWEST = 4  # segments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured.

    Attributes:
        encode: Contexts to encode, against full attention.
        query: Context of the query passes.
        query_tokens: Their tokens.
        decode: Context of the decode steps.
        steps: Tokens to generate in a row.
        rows: Queries that are answered side by side.
        memory: Context of the query whose memory is measured.
        train: Context of the loss.
        train_tokens: Query tokens that the loss is over.
        documents: Documents of different lengths, for the number of programs.
        huggingface: Tokens of a full prefill.
        matrix: Rows of the square matrices whose product shows what the device can do.
        copied: Bytes of the array whose copy does; more than caches hold.
    """

    encode: tuple[Cut, ...]
    query: Cut
    query_tokens: int
    decode: Cut
    steps: int
    rows: tuple[int, ...]
    memory: Cut
    train: Cut
    train_tokens: int
    documents: int
    huggingface: int
    matrix: int = 2048
    copied: int = 2**28

    def fitted(self, positions: int) -> "Sizes":
        """The same for a model of fewer positions, with each context once."""
        query = min(self.query_tokens, positions // 4)
        train = min(self.train_tokens, positions // 4)
        whole = Cut(self.huggingface, 1)
        return dataclasses.replace(
            self,
            encode=tuple(dict.fromkeys(cut.fitted(positions) for cut in self.encode)),
            query=self.query.fitted(positions),
            query_tokens=query,
            decode=self.decode.fitted(positions),
            memory=self.memory.fitted(positions),
            train=self.train.fitted(positions, train),
            train_tokens=train,
            huggingface=whole.fitted(positions).tokens,
        )


FULL = Sizes(
    encode=(Cut(4096, 16), Cut(8192, 32)),
    query=Cut(4096, 16),
    query_tokens=256,
    decode=Cut(8192, 32),
    steps=8,
    rows=(1, 8),
    memory=Cut(8192, 32),
    train=Cut(768, 8),
    train_tokens=256,
    documents=100,
    huggingface=1024,
)
"""What the bars are set for."""

ACCELERATOR = Sizes(
    encode=(Cut(65536, 32),),
    query=Cut(65536, 32),
    query_tokens=256,
    decode=Cut(65536, 32),
    steps=32,
    rows=(1, 8),
    memory=Cut(65536, 32),
    train=Cut(768, 8),
    train_tokens=256,
    documents=100,
    huggingface=8192,
    matrix=8192,
    copied=2**30,
)
"""What takes a GPU or TPU some time."""

QUICK = Sizes(
    encode=(Cut(2048, 8),),
    query=Cut(2048, 8),
    query_tokens=128,
    decode=Cut(2048, 8),
    steps=8,
    rows=(1, 8),
    memory=Cut(2048, 8),
    train=Cut(192, 4),
    train_tokens=64,
    documents=100,
    huggingface=512,
)
"""What takes three minutes on two cores."""
