"""The contract of embedders: subclass EmbedderContract in a test file and implement `make_embedder`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from memory_bank.vectors import embedder_name, encode_documents, encode_queries

TEXTS = [
    "get_order_details: order ORD-48213 of user mia_li_3668 is pending, total 129.90",
    "search_flights from JFK to SEA returned 3 flights, the cheapest HAT136 for 102 dollars",
    "read_file: the file config.yaml does not exist",
    "short",
]

WEIRD_TEXTS = [
    "\ud800 lone \udfff surrogates",
    "NUL \x00 and \x1b[31m escapes",
    "<|endoftext|> [CLS] [SEP] {} {0} %s",
    "日本語のテキスト 中文 한국어 العربية",
    "e\u0301 \u200b \ufeff 👩‍👩‍👧",
    "word " * 20_000,
    "x" * 200_000,
    "\n\t  ",
    "",
]


class EmbedderContract:
    """The clauses. ``tolerance`` is how far a row may differ with its batch (floating point, not meaning)."""

    tolerance = 1e-5

    def make_embedder(self):
        """An embedder: anything with ``encode(list[str])``; may be the same object every time."""
        raise NotImplementedError

    @pytest.fixture
    def embedder(self):
        return self.make_embedder()

    def test_one_row_a_text_of_one_length(self, embedder):
        rows = np.asarray(embedder.encode(TEXTS))
        assert rows.ndim == 2
        assert rows.shape[0] == len(TEXTS)
        assert rows.shape[1] > 0
        assert rows.dtype.kind == "f"
        assert np.asarray(embedder.encode(["another"])).shape == (1, rows.shape[1])

    def test_same_text_same_row(self, embedder):
        first, second = embedder.encode(TEXTS), self.make_embedder().encode(TEXTS)
        np.testing.assert_allclose(first, second, atol=self.tolerance)

    def test_a_batch_gives_what_single_texts_give(self, embedder):
        batch = encode_documents(embedder, TEXTS)
        singles = np.concatenate([encode_documents(embedder, [text]) for text in TEXTS])
        np.testing.assert_allclose(batch, singles, atol=self.tolerance)

    def test_rows_are_in_the_order_of_the_texts(self, embedder):
        texts = [f"{text} number {i}" for i in range(40) for text in TEXTS]
        rows = encode_documents(embedder, texts)
        turned = encode_documents(embedder, texts[::-1])
        np.testing.assert_allclose(rows, turned[::-1], atol=self.tolerance)
        picked = encode_documents(embedder, [texts[7]])[0]
        assert int(np.argmax(rows @ picked)) == 7

    def test_no_texts_give_no_rows(self, embedder):
        for encode in (encode_documents, encode_queries):
            assert encode(embedder, []).shape[0] == 0
        width = encode_documents(embedder, TEXTS).shape[1]
        assert encode_documents(embedder, []).shape in {(0, 0), (0, width)}

    def test_documents_and_queries_are_unit_rows_of_one_length(self, embedder):
        documents, queries = encode_documents(embedder, TEXTS), encode_queries(embedder, TEXTS)
        assert documents.shape == queries.shape
        assert documents.dtype == queries.dtype == np.float32
        for rows in (documents, queries):
            np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)

    def test_any_text_is_embedded(self, embedder):
        rows = encode_documents(embedder, WEIRD_TEXTS)
        assert rows.shape[0] == len(WEIRD_TEXTS)
        norms = np.linalg.norm(rows, axis=1)
        assert np.all((np.abs(norms - 1) < 1e-5) | (norms == 0))
        assert encode_queries(embedder, WEIRD_TEXTS).shape == rows.shape

    def test_a_text_is_most_like_itself(self, embedder):
        rows = encode_documents(embedder, TEXTS)
        assert np.argmax(rows @ rows.T, axis=1).tolist() == list(range(len(TEXTS)))

    def test_threads_share_it(self, embedder):
        alone = encode_documents(embedder, TEXTS)
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda _: encode_documents(embedder, TEXTS), range(8)))
        for rows in together:
            np.testing.assert_allclose(rows, alone, atol=self.tolerance)

    def test_it_has_a_name_that_stays(self, embedder):
        assert embedder_name(embedder)
        assert embedder_name(embedder) == embedder_name(self.make_embedder())
