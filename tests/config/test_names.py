"""The names of the tables."""

from burnish.config import names


def test_every_name_has_a_line_in_both_languages():
    for table in names.TABLES.values():
        for name, line in table.items():
            assert line.en and line.zh, name


def test_facts_speak_of_known_estimators():
    assert names.VALUE_ADVANTAGES.issubset(names.ADVANTAGES)
    assert names.GROUPED_ADVANTAGES.issubset(names.ADVANTAGES)
    assert names.VALUE_ADVANTAGES.isdisjoint(names.GROUPED_ADVANTAGES)


def test_no_two_tables_have_the_same_names():
    listed = [tuple(table) for table in names.TABLES.values()]
    assert len(set(listed)) == len(listed)
