"""The picture of the dataflow is what its script draws, in light and dark, of names that exist."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import fields

import pipeline
from pipeline.frames.read_events import SourceFrames
from pipeline.frames.work_out_rooms import WorkedOutRooms
from tests.support.scripts import load_script
from tests.support.session import PROJECT

script = load_script("dataflow_picture")
PAGE = PROJECT / "docs" / "explanation" / "dataflow.md"


def test_the_picture_is_on_the_page() -> None:
    assert f"](../images/{script.PICTURE.name})" in PAGE.read_text()


def test_the_picture_is_described() -> None:
    described = ET.fromstring(script.PICTURE.read_text()).find("{http://www.w3.org/2000/svg}desc")
    assert described is not None and "load" in (described.text or "")


def test_names_in_the_picture_exist() -> None:
    known = {*pipeline.__all__, *vars(SourceFrames), *(field.name for field in fields(WorkedOutRooms))}
    assert {"read_events", "work_out_rooms", "load", "stored_rooms"} <= script.names() <= known
