"""What the page of a report is made of: looks of lines, intervals and words."""

from h2o_lab.report.charts import HOLLOW_GLYPHS, Point, looks
from h2o_lab.report.words import cut, sample_text, signed
from h2o_lab.results.look import LOOK
from h2o_lab.results.metrics import is_share, normal, smaller_is_better, wilson


def test_policies_without_a_look_of_their_own_differ_in_colour_or_marker():
    point = [Point(0.2, None, 0.5, None)]
    names = ["full", "h2o", *(f"other {number}" for number in range(20))]
    made = looks([(name, name, point) for name in names] + [("h2o seed=1", "h2o", point)])
    assert (made[0].ink, made[0].glyph) == ("currentColor", "●")
    assert made[-1].colour == made[1].colour
    assert made[-1].dashes != made[1].dashes
    others = {(each.colour, each.glyph) for each in made[2:-1]}
    assert len(others) == 20
    assert {glyph for _, glyph in others} <= set(HOLLOW_GLYPHS.values())


def test_intervals():
    assert [round(each, 4) for each in wilson(0.5, 10)] == [0.2366, 0.7634]
    assert all((wilson(0.0, count).low, wilson(1.0, count).high) == (0, 1) for count in range(1, 300))
    assert [round(each, 2) for each in normal(3.0, 1.0)] == [1.04, 4.96]
    assert is_share(0.75, (0.75 * 0.25 / 7) ** 0.5, 8)
    assert not is_share(0.75, 0.1, 8)
    assert smaller_is_better("word_perplexity,none")
    assert not smaller_is_better("acc")


def test_words():
    assert (signed(-0.0001), signed(0.5), signed(-0.25)) == ("0.000", "+0.500", "−0.250")
    assert cut("a b c", 2) == "a … (5 characters in all)"
    deep = {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}, "many": list(range(9)), "n": 0.123456789}
    assert sample_text(deep).splitlines()[-1] == "n: 0.123457"
    assert "… (9 in all)" in sample_text(deep)
    assert "…" in sample_text({"a": deep})


def test_every_look_has_a_glyph_and_no_two_policies_the_same():
    names = list(LOOK)
    made = looks([(name, name, []) for name in names])
    assert all(each.glyph for each in made)
    shown = {(each.colour, each.marker, each.hollow, each.dashes) for each in made}
    assert len(shown) == len(names)
