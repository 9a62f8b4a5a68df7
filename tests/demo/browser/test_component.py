"""What the component hands to Gradio, read without a browser: the rules its templates must keep."""

from __future__ import annotations

from importlib.resources import files

import pytest

pytest.importorskip("gradio", reason="the view is a Gradio component: pip install gradio")

from dflash_demo.view import component

VIEW = files("dflash_demo.view")


@pytest.mark.parametrize("sign", ["\\", "`", "${", "{{", "value}"])
def test_skeleton_has_no_sign_that_a_template_would_read(sign: str) -> None:
    assert sign not in component.skeleton()


def test_style_cannot_end_its_own_element() -> None:
    assert "</" not in component.style()
    assert component.style().count("{") == component.style().count("}")


def test_every_file_of_the_view_is_used() -> None:
    there = {path.name for path in VIEW.iterdir()}
    assert {name for name in there if name.endswith(".js")} == set(component.SCRIPTS)
    assert {name for name in there if name.endswith(".css")} == set(component.STYLES)
    assert not any(name.endswith(".pyi") for name in there)  # Gradio writes one beside a component unless told not to


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
)
def test_script_never_reads_text_as_anything_else(way: str) -> None:
    assert way not in component.script()


def test_component_is_described_for_the_api_and_knows_no_custom_events() -> None:
    view = component.RunView(elem_classes="more")
    assert view.api_info()["type"] == "string"
    assert view.elem_classes == ["dflash-run", "more"]
    assert component.RunView(**view.constructor_args).elem_classes == view.elem_classes  # as Gradio does per visitor
    assert not hasattr(view, "rejected")  # a quoted word of the script, which Gradio would take for an event


def test_a_message_with_a_script_tag_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert component.RunView().postprocess('{"prompt": "<script>"}') == '{"prompt": "<script>"}'
    assert not recwarn.list
