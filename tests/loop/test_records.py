"""What the run folder says of a trajectory."""

from burnish.demo.tiny import make_tokenizer
from burnish.loop.recorder import decoded


def test_rows_are_decoded_as_the_tokenizer_does():
    tokenizer = make_tokenizer("0123456789+= ")
    rows = [tokenizer.encode("1+1="), [], tokenizer.encode("1+1="), [*tokenizer.encode("2 "), tokenizer.eos_token_id]]
    expected = [tokenizer.decode(row, skip_special_tokens=False) for row in rows]
    assert expected[0] == "1+1=" and tokenizer.eos_token in expected[3]
    assert decoded(tokenizer, rows) == expected
    tokenizer.clean_up_tokenization_spaces = True  # transformers' own decoding
    assert decoded(tokenizer, rows) == tokenizer.batch_decode(rows, skip_special_tokens=False)
    assert decoded(tokenizer, []) == []
