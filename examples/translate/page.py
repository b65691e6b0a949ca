"""A page on this machine: a text, and its two translations side by side."""

import html

from examples.translate.hybrid import Hybrid, Translation

from longhaul import LonghaulError

_PAGE = """<!doctype html><meta charset="utf-8"><title>Two translators and a judge</title>
<style>body{{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}
textarea{{width:100%;height:6em}}table{{width:100%;border-collapse:collapse}}
td,th{{border:1px solid #999;padding:.4em;text-align:left;vertical-align:top}}
.chosen{{background:#dfeeda}}</style><h1>Two translators and a judge</h1>
<form><textarea name="text" aria-label="English text">{text}</textarea>
<p><button>Translate</button></form>{result}"""


def page(hybrid: Hybrid, text: str) -> str:
    """The page for a text; what is wrong with the text stands in the place of the table."""
    result = ""
    if text:
        try:
            rows = "".join(map(_row, hybrid.translate(text)))
            heads = "<tr><th>source<th>statistical<th>neural<th>why (+ speaks for the neural)</tr>"
            result = f"<table>{heads}{rows}</table>"
        except LonghaulError as error:
            result = f"<p role='alert'>{html.escape(str(error))}</p>"
    return _PAGE.format(text=html.escape(text), result=result)


def _row(one: Translation) -> str:
    cells = [f"<td>{html.escape(one.source)}"]
    for name, text in (("statistical", one.statistical), ("neural", one.neural)):
        chosen = " class='chosen'" if name == one.chosen else ""
        cells.append(f"<td{chosen}>{html.escape(text)}")
    reasons = "<br>".join(
        f"{html.escape(name)} = {value:.2f} ({moved:+.2f})" for name, value, moved in one.reasons
    )
    took = f"{100 * one.probability:.0f} % neural, {1000 * one.seconds:.0f} ms"
    return f"<tr>{''.join(cells)}<td>{took}<br>{reasons}</tr>"


def serve(hybrid: Hybrid, port: int) -> None:
    """Serve the page on 127.0.0.1 until interrupted."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    def answer(request: Request) -> HTMLResponse:
        return HTMLResponse(page(hybrid, request.query_params.get("text", "")))

    print(f"http://127.0.0.1:{port}")
    app = Starlette(routes=[Route("/", answer)])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
