"""An embedder whose vectors a test writes into the texts."""


class NumbersEmbedder:
    """Reads the vector from the text, such as ``"0.6 0.8"``, ignoring words; counts the embedded texts."""

    def __init__(self, name="numbers"):
        self.name = name
        self.count = 0

    def encode(self, texts):
        self.count += len(texts)
        return [
            [float(word) for word in text.split() if not word.isalpha() or word == "nan"] for text in texts
        ]
