"""The EPUB: what its configuration adds, and pages made XML."""

import xml.etree.ElementTree as tree
import zipfile
from pathlib import Path

import pytest
import yaml

from speedlab import __version__
from speedlab.errors import NotAvailable, SpeedLabError
from speedlab.publishing.epub import build_epub, epub_config, well_formed

ROOT = Path(__file__).resolve().parents[1]


def packed(folder: Path, page: str) -> Path:
    path = folder / "in.epub"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("mimetype", "application/epub+zip")
        file.writestr("a/page.xhtml", page, compress_type=zipfile.ZIP_DEFLATED)
    return path


def test_empty_elements_are_closed_and_the_rest_stays(tmp_path: Path) -> None:
    page = (
        '<html><img alt="a / b" src="data:x/y=="><br><hr class="x"/><input type="radio"><code>&lt;img&gt;</code></html>'
    )
    well_formed(packed(tmp_path, page), tmp_path / "out.epub")
    with zipfile.ZipFile(tmp_path / "out.epub") as file:
        assert file.namelist() == ["mimetype", "a/page.xhtml"]
        assert file.infolist()[0].compress_type == zipfile.ZIP_STORED
        root = tree.fromstring(file.read("a/page.xhtml"))
    assert [element.tag for element in root] == ["img", "br", "hr", "input", "code"]
    assert root[0].attrib == {"alt": "a / b", "src": "data:x/y=="}
    assert root[4].text == "<img>"


def test_a_page_that_is_no_xml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpeedLabError, match=r"a/page\.xhtml"):
        well_formed(packed(tmp_path, "<html><b></html>"), tmp_path / "out.epub")


def test_the_configuration_is_that_of_the_book_with_a_version() -> None:
    text = (ROOT / "book" / "_config.yml").read_text(encoding="utf-8")
    book, epub = yaml.safe_load(text), yaml.safe_load(epub_config(text))
    assert epub["sphinx"]["config"].items() >= book["sphinx"]["config"].items()
    assert epub["sphinx"]["config"]["version"] == __version__
    assert {**epub, "sphinx": None} == {**book, "sphinx": None}


def test_without_staged_pages_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match="speedlab book"):
        build_epub(tmp_path)
