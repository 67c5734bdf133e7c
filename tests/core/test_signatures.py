"""Functions of C++ in short, and names that only look like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.text import without_arguments, without_parameters


@pytest.mark.parametrize(
    ("function", "short"),
    [
        ("main", "main"),
        ("f()", "f"),
        ("v8::Factory<v8::Map>::New(v8::Handle<v8::Map>, int)", "v8::Factory::New"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f(int)"),
        ("a::(anonymous namespace)::f(int)", "a::{anonymous}::f"),
        ("std::vector<int>::operator[](unsigned long)", "std::vector<int>::operator[](unsigned long)"),
        ("broken<(int", "broken<(int"),
        # templates have their return type in the name
        ("void f<int>(int)", "f"),
        ("std::vector<int, std::allocator<int> > a::make<int>(a::B&&) const", "a::make"),
        ("unsigned long a::(anonymous namespace)::f<char const*>(char const*) [clone .cold]", "a::{anonymous}::f"),
        ("decltype (f(1)) g<int>(int)", "g"),
        ("auto f<int>(int)::{lambda(int)#1}::g<int>(int) const", "f(int)::{lambda(int)#1}::g"),
        ("void (*signal(int, void (*)(int)))(int)", "void (*signal(int, void (*)(int)))(int)"),
        # no signatures
        (".text(14)", ".text(14)"),
        ("JS:~(anonymous)", "JS:~(anonymous)"),
        ("<T as core::Trait>::f", "<T as core::Trait>::f"),
    ],
)
def test_functions_of_cxx_are_reported_without_their_arguments(function, short):
    assert without_arguments(function) == short


def test_templates_stay_where_only_the_parameters_are_too_many():
    assert without_parameters("a::operator()(int) const") == "a::operator()"
    assert without_parameters("void a::f<int, b<c> >(int) const") == "a::f<int, b<c> >"


@given(st.text("ab:<>(){}[] *&const", max_size=40))
def test_nothing_is_made_up(text):
    for short in (without_parameters, without_arguments):
        assert short(text)[:1] in ("", *text, "{")
        assert bool(short(text)) == bool(text)
