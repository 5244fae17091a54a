"""Texts as tokens: what occurs in each, by a tokenizer that is made here; wrong tokenizers, which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lipcompile.diagnostics import InputError
from lipcompile.tables import tokens
from lipcompile.tables.encode import bucket, encoded_batch, layout
from lipcompile.tables.guess import guess
from lipcompile.tables.schema import Ignore, Schema, Text
from lipcompile.tables.schema_file import load, portable
from lipcompile.tables.tokens import token_ids

WORDS = {"[START]": 0, "[UNK]": 1, "a": 2, "good": 3, "film": 4}
BUCKETS = 7
TEXTS = ["a good good film", "what ?", "", None, "film"]


def tokenizer(**changes: object) -> str:
    """Return the content of a tokenizer of words, which begins each text with a special token."""
    start = {"id": "[START]", "ids": [0], "tokens": ["[START]"]}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": None,
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "[START]", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"[START]": start},
            },
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"},
            **changes,
        }
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer(), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", ["content", "file", "folder"])
def test_a_text_has_the_buckets_of_its_tokens_and_no_others(form: str, saved: Path) -> None:
    named = {"content": tokenizer(), "file": str(saved), "folder": str(saved.parent)}[form]
    schema = Schema((Text("t", named, BUCKETS),))
    expected = np.zeros((len(TEXTS), BUCKETS), np.float32)
    for row, names in enumerate((("a", "good", "film"), ("[UNK]",), (), (), ("film",))):
        expected[row, [bucket(name, BUCKETS) for name in names]] = 1
    found, _ = encoded_batch(pa.record_batch({"t": TEXTS}), schema, "the table")
    np.testing.assert_array_equal(found, expected)
    assert layout(schema).names == tuple(f"t#{number}" for number in range(BUCKETS))
    assert (layout(schema).low == 0).all()
    assert (layout(schema).high == 1).all()


def test_no_text_is_looked_at_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row alone has the numbers that it has among others, whatever the tokenizer says of padding."""
    monkeypatch.setattr(tokens, "_PIECE", 2)
    padding = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
    padded = tokenizer(padding={**padding, "pad_id": 4, "pad_type_id": 0, "pad_token": "film"})
    schema = Schema((Text("t", padded, BUCKETS),))
    together, _ = encoded_batch(pa.record_batch({"t": TEXTS}), schema, "the table")
    alone = [encoded_batch(pa.record_batch({"t": [text]}), schema, "")[0] for text in TEXTS]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_tokens_of_a_network_are_cut_and_padded(saved: Path) -> None:
    assert token_ids(["A good film", "film x"], saved, 3, padding=9).tolist() == [[0, 2, 3], [0, 4, 1]]
    assert token_ids(["film"], saved, 4, padding=9).tolist() == [[0, 4, 9, 9]]


def test_a_schema_finds_its_tokenizer_beside_it_and_may_hold_it(saved: Path) -> None:
    path = saved.with_name("t.schema.toml")
    path.write_text('[columns]\nt = { kind = "text", tokenizer = "tokenizer.json", buckets = 7 }')
    found = load(path)
    assert found.columns == (Text("t", str(saved.resolve()), BUCKETS),)
    assert portable(found).columns == (Text("t", tokenizer(), BUCKETS),)
    assert portable(portable(found)) == portable(found)


def test_free_text_is_read_where_there_is_a_tokenizer() -> None:
    frame = pd.DataFrame({"t": [f"film {row}" for row in range(200)], "same": ["a"] * 200})
    assert guess(frame).columns == (Ignore("t"), Ignore("same"))
    assert guess(frame, tokenizer="x").columns == (Text("t", "x"), Ignore("same"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "is not UTF-8 text"),
        (b"{}", "of another format"),
        (b"words", "of another format"),
    ],
)
def test_wrong_tokenizers_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        token_ids(["secret-4711"], path, 3)
    assert error.value.diagnostics[0].code == "LIP412"
