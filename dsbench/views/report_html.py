"""A report as one HTML file: pictures and CSV files are data in it, there is no script, and nothing is fetched."""

from __future__ import annotations

import base64
from pathlib import Path

from dsbench.views.report_parts import Picture, Report
from dsbench.views.tables import Table, as_csv, is_number, is_numeric

TEMPLATE = "report.html.jinja"


def as_html(report: Report) -> str:
    """Every name in it that comes from a run is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "is_number": is_number,
        "is_numeric": is_numeric,
        "csv_data": csv_data,
        "picture_data": picture_data,
    }
    return environment.get_template(TEMPLATE).render(report=report)


def csv_data(table: Table) -> str:
    return _data("text/csv;charset=utf-8", as_csv(table))


def picture_data(picture: Picture) -> str:
    return _data("image/svg+xml", picture.svg)


def _data(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
