//! Blocks: macros, loops, calls, and the names that they see.

use mlxcel_template::{Template, TemplateError, Variable};

use crate::ERROR;

fn render(source: &str) -> String {
    rendered(source).unwrap()
}

fn rendered(source: &str) -> Result<String, TemplateError> {
    Template::parse(source)?.render(&[], None).map(|rendered| rendered.text)
}

#[test]
fn a_recursive_loop_is_called_with_the_items_of_the_next_level() {
    let cases = [
        (
            "{% for i in [1, [2, [3]], 4] recursive %}{{ loop.depth }}{{ loop.index0 }}\
             {% if i is iterable %}<{{ loop(i)|upper }}>{% else %}{{ i }}{% endif %}{% else %}none{% endfor %}",
            "10111<20221<303>>124",
        ),
        // The next level does not see what an iteration sets.
        (
            "{% set x = 'o' %}{% for i in [[0], 1] recursive %}{{ x }}{% set x = 'i' %}\
             {% if i is iterable %}{{ loop(i) }}{% endif %}{% endfor %}",
            "ooo",
        ),
        (
            "{% for i in [1, [2, 1]] if i != 1 recursive %}{{ i }}{% if i != 2 %}{{ loop(i) }}{% endif %}{% endfor %}",
            "[2, 1]2",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source), expected, "{source}");
    }
    let refused = [
        "{% for i in [1] %}{{ loop([2]) }}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop() }}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ];
    for source in refused {
        rendered(source).unwrap_err();
    }
}

#[test]
fn names_that_are_refused_are_in_the_error() {
    let cases = [
        ("{{ joiner(', ') }}", "joiner"),
        ("{{ cycler is defined }}", "cycler"),
        ("{% set ns = namespace(_secret=1) %}", "_secret"),
        ("{% set ns = namespace() %}{% set ns._secret = 1 %}", "_secret"),
    ];
    for (source, name) in cases {
        assert!(rendered(source).unwrap_err().to_string().contains(name), "{source}");
    }
    assert_eq!(render("{% set joiner = 1 %}{{ joiner }}"), "1");
}

#[test]
fn a_call_block_hands_its_body_to_a_macro() {
    for (source, expected) in [
        (
            "{% macro m(x, y=1) %}[{{ x }}{{ y }}{{ caller(2, c=3) }}]{% endmacro %}{% call(a, b=5, c=6) m(y=7, x=8) %}{{ a }}{{ b }}{{ c }}{% endcall %}",
            "[87253]",
        ),
        (
            "{% macro m() %}{{ kwargs }}{{ caller(a=1) }}{% endmacro %}{% call(a) m(k=2) %}{{ a }}{% endcall %}",
            "{'k': 2}1",
        ),
        ("{% macro m(a) %}{{ a }}{{ caller }}{% endmacro %}{{ m(1, caller=2) }}", "12"),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{% call m(caller=1) %}x{% endcall %}", ERROR),
        ("{% macro m() %}{{ kwargs|length }}{% endmacro %}{% call m(a=1) %}x{% endcall %}", "2"),
        (
            "{% macro m() %}{% macro n() %}{{ caller() }}{% endmacro %}y{% endmacro %}{% call m() %}x{% endcall %}",
            "y",
        ),
        ("{% macro m() %}y{% endmacro %}{% call m() %}x{% endcall %}", ERROR),
        ("{% call range(3) %}x{% endcall %}", ERROR),
        ("{% call 'a'.upper() %}x{% endcall %}", ERROR),
    ] {
        assert_eq!(rendered(source).unwrap_or_else(|_| ERROR.to_owned()), expected, "{source}");
    }
}

#[test]
fn a_name_that_a_block_sets_for_itself_hides_the_variable_around_it() {
    let cases = [
        ("{% for i in [1] %}{{ s }}{% endfor %}{% set s = 'x' %}{{ s }}", "x"),
        ("{% for i in [1, 2] %}{% for j in [1] %}{{ s }}{% endfor %}{% set s = 'x' %}{% endfor %}", ""),
        ("{% macro f() %}{{ s }}{% endmacro %}{{ f() }}{% set s = 'x' %}{{ f() }}", "x"),
        ("{% set s %}[{{ s }}]{% endset %}{{ s }}", "[]"),
        // It mentions the name before, or sets it in a branch, or a block around it mentions it.
        ("{% for i in [1] %}{{ s }}{% endfor %}{% set s = s ~ 1 %}{{ s }}", "ss1"),
        ("{% for i in [1] %}{{ s }}{% endfor %}{% if 1 %}{% set s = 'x' %}{% endif %}{{ s }}", "sx"),
        ("{% for i in [1] %}{% for j in [1] %}{{ s }}{% endfor %}{% set s = 'x' %}{% endfor %}{{ s }}", "ss"),
        (
            "{{ s }}{% with %}{% for j in [1] %}{{ s }}{% endfor %}{% set s = 'x' %}{{ s }}{% endwith %}",
            "ssx",
        ),
    ];
    for (source, expected) in cases {
        let rendered = Template::parse(source).unwrap().render(&[("s", Variable::Text("s"))], None);
        assert_eq!(rendered.unwrap().text, expected, "{source}");
    }
}

#[test]
fn a_loop_has_a_length() {
    assert_eq!(render("{% for i in 'abc' %}{{ loop|length }}{% endfor %}"), "333");
}

#[test]
fn else_runs_if_no_iteration_of_a_loop_completes() {
    let cases = [
        ("{% for i in [1, 2] %}{% continue %}{% else %}else{% endfor %}", "else"),
        ("{% for i in [1, 2] %}{% break %}{% else %}{{ i is defined }}{% endfor %}", "False"),
        ("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}else{% endfor %}", "1"),
        (
            "{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% else %}else{% endfor %}",
            "2",
        ),
        ("{% for j in [1] %}{% for i in [] %}{% else %}{% break %}{% endfor %}x{% endfor %}", ""),
        ("{% for i in [] %}{% else %}{% set x = 1 %}{{ x }}{% endfor %}{{ x is defined }}", "1False"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source), expected, "{source}");
    }
}
