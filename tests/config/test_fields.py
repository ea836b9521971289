"""Field metadata."""

from dataclasses import dataclass, fields

from burnish.config.fields import above, between, facts_of, files, one_of, section, spelled, spelling


@dataclass
class Inner:
    size: int = between(3, 1, 9)


@dataclass
class Outer:
    names: list[str] = one_of(["a"], ("a", "b"))
    paths: list[str] = files()
    inner: Inner = section(Inner, size=5)
    rate: float = above(0.5, 0)
    odd_name: str = spelled("odd-name", "x")


def test_list_defaults_are_not_shared():
    first, second = Outer(), Outer()
    first.names.append("b")
    assert second.names == ["a"]


def test_each_use_of_a_section_has_its_own_defaults():
    assert Outer().inner.size == 5
    assert Inner().size == 3


def test_facts_and_bounds():
    facts = {field.name: facts_of(field) for field in fields(Outer)}
    assert facts["names"].allowed == ("a", "b")
    assert facts["paths"].comma_separated
    assert facts["rate"].bounds() == "> 0"
    assert facts_of(fields(Inner)[0]).bounds() == ">= 1 and <= 9"
    assert facts["inner"].bounds() is None


def test_spelling_is_the_written_name():
    assert [spelling(field) for field in fields(Outer)][-1] == "odd-name"
