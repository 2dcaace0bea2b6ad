//! What Jinja makes of templates, as transformers 5.23 configures it. The expectations are its renderings with
//! Python 3.11; [`ERROR`] is an error.

#![allow(clippy::unwrap_used)]

mod blocks;

use mlxcel_template::{Template, Variable};
use serde_json::{Value, json};

const ERROR: &str = "an error";

/// The variables of a template.
struct Given<'a>(Vec<(&'a str, Variable<'a>)>);

fn given(variables: &Value) -> Given<'_> {
    let variables = variables.as_object().unwrap().iter();
    Given(variables.map(|(name, value)| (name.as_str(), Variable::Json(value))).collect())
}

impl Given<'_> {
    /// Renders each expression of `cases` with these, and compares the texts.
    fn expect(&self, cases: &[(&str, &str)]) {
        let now = "2025-07-06T10:15:03[UTC]".parse().unwrap();
        let wrong = cases.iter().filter_map(|(expression, expected)| {
            let source = format!("{{{{ {expression} }}}}");
            let rendered = Template::parse(&source).and_then(|t| t.render(&self.0, Some(&now)));
            let got = rendered.map_or(ERROR.to_owned(), |rendered| rendered.text);
            (got != *expected).then(|| format!("{expression}\n  expected {expected}\n  got      {got}"))
        });
        let wrong: Vec<_> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn repr_escapes_what_python_does_not_print() {
    let chars = json!({"chars": ["\u{600}", "\u{e0067}", "\u{e000}", "\u{f0000}", "\u{ffff}", "\u{ad}", "\u{301}", "é", "中", "😀", "\u{3000}", "\u{7f}"]});
    given(&chars).expect(&[
        (
            "chars",
            "['\\u0600', '\\U000e0067', '\\ue000', '\\U000f0000', '\\uffff', '\\xad', '\u{301}', 'é', '中', '😀', '\\u3000', '\\x7f']",
        ),
        ("chars[:1]|string", "['\\u0600']"),
    ]);
}

#[test]
fn letters_without_case_neither_are_capitals_nor_belong_to_words() {
    given(&json!({})).expect(&[
        ("'a中b'.title()", "A中B"),
        ("'中' is upper", "False"),
        ("'中' is lower", "False"),
        ("'A中1'.isupper()", "True"),
        ("'ǅ'.isupper() or 'ǅ'.islower()", "False"),
        ("'aǅ' is lower", "False"),
    ]);
}

#[test]
fn case_follows_the_characters_around() {
    given(&json!({})).expect(&[
        ("'ΟΔΟΣ ΣΑΣ'|lower", "οδος σας"),
        ("'ΟΔΟΣ'.capitalize()", "Οδος"),
        ("'ΟΔΟΣ ΣΑΣ'.title()", "Οδος Σας"),
        ("'οδοΣ'.swapcase()", "ΟΔΟς"),
        ("'ΑΣ ΣΑΣ (ΑΑΣ'|title", "Ασ Σας (Αας"),
        ("'straße ßa ŉ'.title()", "Straße Ssa ʼN"),
        ("'ßa ŉa'|title", "SSa ʼNa"),
        ("'ßa'|capitalize", "Ssa"),
        ("'ﬁn'.title()", "Fin"),
        ("'ǆ'.capitalize()", "ǅ"),
        ("'გა'|capitalize", "გა"),
        ("'ᾀ'.title()", "ᾈ"),
        ("'ǅ'.swapcase()", "ǅ"),
        ("'Straße ſ ẞ ı'.casefold()", "strasse s ss ı"),
    ]);
}

#[test]
fn floats_print_the_digits_that_python_chooses() {
    // Exactly between .12 and .13.
    given(&json!({"tie": -1_666_787_860_581_705.0 / 8.0})).expect(&[
        ("tie", "-208348482572713.12"),
        ("2 ** -25", "2.9802322387695312e-08"),
        ("2.0 ** -1017", "7.120236347223045e-307"),
        ("[tie]|tojson", "[-208348482572713.12]"),
        ("5e-324", "5e-324"),
        ("1e23", "1e+23"),
    ]);
    // The digits that JSON had.
    let parsed: Value =
        serde_json::from_str(r#"{"x": [0.009953199718421867, 5.778692717301646e-43]}"#).unwrap();
    given(&parsed).expect(&[("x", "[0.009953199718421867, 5.778692717301646e-43]")]);
}

#[test]
fn integers_round_to_integers() {
    given(&json!({})).expect(&[
        ("7|round(-1)", "10"),
        ("[25|round(-1), 35|round(-1), -25|round(-1), 1|round(-50)]", "[20, 40, -20, 0]"),
        ("true|round", "1"),
        ("-0.2|round(0, 'ceil')", "0.0"),
        ("(-0.001)|round(2, 'ceil')", "0.0"),
        ("1e308|round(1, 'floor')", ERROR),
    ]);
}

#[test]
fn int_and_float_read_numbers_as_python_does() {
    given(&json!({"inf": "inf", "huge": "1e300"})).expect(&[
        ("['1_0'|int, '1_0.5'|int, '1_'|int(7), '1__0'|int(7), '_1'|int(7)]", "[10, 10, 7, 7, 7]"),
        ("['0x_1f'|int(7, 16), '0B1'|int(7, 2), '1_0.5'|float, '1_'|float(2)]", "[31, 1, 10.5, 2]"),
        ("['x'|int(none), 'x'|float(none), inf|int(7), 'nan'|int(7)]", "[None, None, 7, 7]"),
        ("missing|int", ERROR),
        ("missing|float(1)", ERROR),
        ("inf|float|int", ERROR),
        // Digits of all scripts, but not superscripts.
        ("['٣'|int, '-१_२'|int, '３.５'|float, '0x٣f'|int(0, 16), '²'|int(7)]", "[3, -12, 3.5, 63, 7]"),
        ("['٣'.isdecimal(), '²'.isdecimal(), '²'.isdigit(), '½'.isdigit()]", "[True, False, True, False]"),
        // Python has the integer; ours have 128 bits.
        ("huge|int(7)", ERROR),
    ]);
}

#[test]
fn division_of_floats_rounds_down() {
    given(&json!({})).expect(&[
        (
            "[1 // 0.1, 1 % 0.1, 7.5 // -2, -1 % 0.5, 0.0 // -3]",
            "[9.0, 0.09999999999999995, -4.0, 0.0, -0.0]",
        ),
        (
            "[2.5 is odd, 3.0 is odd, 2.5 is even, 4.0 is even, 7.5 is divisibleby 2.5]",
            "[False, True, False, True, True]",
        ),
        ("+(-0.0)", "-0.0"),
        ("1e17 // -7", "-1.4285714285714288e+16"),
        ("0 ** -1", ERROR),
        ("1e200 ** 2", ERROR),
        ("3 is divisibleby 0", ERROR),
    ]);
}

#[test]
fn integers_and_floats_compare_exactly() {
    given(&json!({"big": 9007199254740993_i64})).expect(&[
        (
            "[big == 9007199254740992.0, big > 9007199254740992.0, big in [9007199254740992.0]]",
            "[False, True, False]",
        ),
        (
            "[1 == 1.0, 1 < 1.5, -1 > -1.5, 0 == -0.0, 1e300 > big, true == 1.0]",
            "[True, True, True, True, True, True]",
        ),
    ]);
}

#[test]
fn lists_compare_by_the_first_items_that_differ() {
    let rows =
        json!({"rows": [{"n": "b"}, {"n": "a", "k": null}], "l": [{"k": null, "v": 2}, {"k": null, "v": 1}]});
    given(&rows).expect(&[
        ("[none, 1] < [none, 2]", "True"),
        ("[none, none]|sort", "[None, None]"),
        ("l|sort(attribute='k')|map(attribute='v')|list", "[2, 1]"),
        ("l|sort(attribute='k,v')|map(attribute='v')|list", "[1, 2]"),
        ("rows|sort(attribute='none')|map(attribute='n')|list", "['b', 'a']"),
        ("rows|unique(attribute='n,k')|list|length", "1"),
        ("[1, none]|sort", ERROR),
    ]);
}

#[test]
fn dict_and_namespace_take_entries_by_position() {
    given(&json!({"d": {"a": 1}})).expect(&[
        ("dict([('a', 1), ['b', 2]], c=3)", "{'a': 1, 'b': 2, 'c': 3}"),
        ("dict(d.items(), a=2)", "{'a': 2}"),
        ("namespace({'a': 1}, b=2).a", "1"),
        ("namespace(d).a", "1"),
        ("dict([1])", ERROR),
        ("dict([(1, 2, 3)])", ERROR),
    ]);
}

#[test]
fn strings_are_searched_within_bounds() {
    given(&json!({"s": "äbcabc"})).expect(&[
        ("[s.find('b', 2), s.find('b', 5), s.rfind('b', 0, -2), s.index('c', -2)]", "[4, -1, 1, 5]"),
        ("[s.count('b', 2), s.count('', 2, 4), s.find('', 9), s.find('', 6)]", "[1, 3, -1, 6]"),
        (
            "[s.startswith('b', 1), s.endswith('a', 0, 4), s.startswith(('x', 'b'), 4), s.startswith('', 9)]",
            "[True, True, True, False]",
        ),
        ("s.index('b', 5)", ERROR),
        ("s.find()", ERROR),
    ]);
}

#[test]
fn splitlines_keeps_line_breaks_if_asked() {
    given(&json!({"s": "a\r\nb\n\nc"})).expect(&[
        ("s.splitlines(true)", "['a\\r\\n', 'b\\n', '\\n', 'c']"),
        ("s.splitlines(keepends=false)", "['a', 'b', '', 'c']"),
        ("'a\\n'.splitlines(true)", "['a\\n']"),
    ]);
}

#[test]
fn formats_have_signs_and_precisions() {
    given(&json!({"inf": "inf", "nan": "nan"})).expect(&[
        ("'% d|%+d|% 05d|%.3d|%.3x' % (1, 1, 1, 7, 10)", " 1|+1| 0001|007|00a"),
        ("'%f %F' % (nan|float, inf|float)", "nan INF"),
        ("'%o %e %g %.2G' % (8, 1.5, 2.5, 12345)", "10 1.500000e+00 2.5 1.2E+04"),
        ("'%%' % []", "%"),
        ("'a' % {'b': 1}", "a"),
        ("'%(a)s %(b)05.1f %%' % {'b': 2, 'a': 'x'}", "x 002.0 %"),
        ("'%s %(a)s' % {'a': 1}", "{'a': 1} 1"),
        ("'%(a)s %s' % {'a': 1}", ERROR),
        ("'%(b)s' % {'a': 1}", ERROR),
        ("'%(a)s' % (1,)", ERROR),
        ("'%(a' % {'a': 1}", ERROR),
        ("'a' % (1,)", ERROR),
        ("'a' % 1", ERROR),
    ]);
}

#[test]
fn fields_of_a_format_have_the_formats_of_numbers() {
    given(&json!({"d": {"a": 1}})).expect(&[
        ("'{:.2f} {:03d} {n:+.1f} {:5.1f}%'.format(2.5, 7, -0.25, n=1)", "2.50 007 +1.0  -0.2%"),
        ("'{0:d}{0:2d}'.format(true)", "1 1"),
        ("'{:.2f}'.format('a')", ERROR),
        ("'{:d}'.format(1.5)", ERROR),
        ("'{:.1d}'.format(1)", ERROR),
        ("'{0.a}'.format(d)", ERROR),
        (
            "'{:>5}|{:<3}|{:^4}|{:*^5}|{:4}|{:.1}'.format('a', 1, 'b', 2, 'c', 'de')",
            "    a|1  | b  |**2**|c   |d",
        ),
        ("'{:05}|{:<05}|{:=+5}|{:é>3}'.format('a', 1, 2, 3)", "a0000|10000|+   2|éé3"),
        ("'{!r} {0!s:>3} {n!r:<4}|'.format('a', n='b')", ERROR),
        ("'{0!r} {0!s:>3} {n!r:<4}|'.format('a', n='b')", "'a'   a 'b' |"),
        (
            "'{:x} {:#o} {:b} {:,} {:_} {:,.2f}'.format(255, 8, 5, 1234567, -12345, 12345.678)",
            "ff 0o10 101 1,234,567 -12_345 12,345.68",
        ),
        (
            "'{:e} {:g} {:G} {:.3} {:.3} {:%} {:.1%}'.format(1234.5, 1e20, 1e-7, 2.0, 123.0, 1, 0.256)",
            "1.234500e+03 1e+20 1E-07 2.0 1.23e+02 100.000000% 25.6%",
        ),
        ("'{0[a]} {1[1]} {0}'.format(d, [1, 2])", "1 2 {'a': 1}"),
        ("'{:{}}|{:{w}.{p}}'.format('a', 3, 'bcd', w=4, p=2)", "a  |bc  "),
        ("'{} {0}'.format(1)", ERROR),
        ("'{:5}'.format(none)", ERROR),
        ("'{:{:{}}}'.format(1, 2, 3)", ERROR),
        ("'{!x}'.format(1)", ERROR),
    ]);
}

#[test]
fn map_passes_items_on_if_the_attribute_is_none() {
    given(&json!({"l": [1], "rows": [{}]})).expect(&[
        ("l|map(attribute=none)|list", "[1]"),
        ("rows|map(attribute='a', default=none)|list", "[Undefined]"),
        ("rows|map(attribute='a', default=0)|list", "[0]"),
    ]);
}

#[test]
fn items_are_mapped_and_chosen_of_none_as_of_an_empty_list() {
    given(&json!({"tools": null})).expect(&[
        ("tools|selectattr('type', 'equalto', 'code_interpreter')|list|length", "0"),
        ("[tools|rejectattr('a')|list, 0|map('upper')|list, false|select|list]", "[[], [], []]"),
        ("tools|list", ERROR),
        ("1|map('upper')|list", ERROR),
    ]);
}

#[test]
fn strings_that_are_added_to_safe_ones_are_escaped() {
    given(&json!({"d": {"a": 1}, "q": "\"<"})).expect(&[
        ("'a'|safe + q", "a&#34;&lt;"),
        ("q + q|safe + q", "&#34;&lt;\"<&#34;&lt;"),
        ("'n\n'|safe + d|tojson()", "n\n{&#34;a&#34;: 1}"),
        ("d|tojson|safe ~ q", "{\"a\": 1}\"<"),
        ("(q|e) + (q|safe|e) + (q|e|forceescape)", "&#34;&lt;\"<&amp;#34;&amp;lt;"),
        ("(' a '|safe).strip()|upper * 2 + q", "AA&#34;&lt;"),
        ("('ab'|safe)[1:] + q ~ ('a b'|safe).split()[1] + q", "b&#34;&lt;b&#34;&lt;"),
        ("'a'|safe|replace('a', 'b') + q", "b\"<"),
        ("[q|safe, 1]", "[Markup('\"<'), 1]"),
        ("['a'|safe, q]|join + q", "a\"<\"<"),
        ("['a'|safe is escaped, 'a' is escaped, 'a'|safe == 'a']", "[True, False, True]"),
        // Python escapes the arguments.
        ("'%s'|safe % q", ERROR),
        ("('{}'|safe).format(q)", ERROR),
        ("(','|safe).join([q])", ERROR),
    ]);
}

#[test]
fn dates_have_no_locale_and_no_zone() {
    given(&json!({})).expect(&[
        ("strftime_now('%c')", "Sun Jul  6 10:15:03 2025"),
        ("strftime_now('%x %%c [%z%Z]')", "07/06/25 %c []"),
    ]);
}

#[test]
fn lines_are_indented_up_to_the_last_line_break() {
    given(&json!({"r": "a\r", "separator": "a\u{2029}b\u{2028}", "tab": "a\u{b}"})).expect(&[
        ("[r|indent, separator|indent(1), tab|indent, 'a\n'|indent]", "['a', 'a\\n b\\n', 'a\\n', 'a\\n']"),
        ("missing|indent", ERROR),
        ("none|indent", ERROR),
        ("5|indent", ERROR),
    ]);
}

#[test]
fn undefined_arguments_are_not_missing() {
    given(&json!({"d": {}})).expect(&[
        ("d.get('a', missing) is defined", "False"),
        ("d.get('a', missing) ~ d.get('a')", "None"),
        ("range(missing)", ERROR),
        ("range(1, missing)", ERROR),
        ("missing is callable", "True"),
    ]);
}
