"""A shop that accepts orders in euros; it fails on some orders twice before it accepts them."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAILURES = 2
seen: dict[str, int] = {}
accepted: set[str] = set()


class Shop(BaseHTTPRequestHandler):
    """Answers 200, 422 for an unknown currency, 503 for the first attempts of a flaky order."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Accept or reject one order."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tries = seen[order["id"]] = seen.get(order["id"], 0) + 1
        if order["currency"] != "EUR":
            self.answer(422, f"currency {order['currency']} is not known")
        elif order.get("flaky") and tries <= FAILURES:
            self.answer(503, "try again")
        else:
            accepted.add(order["id"])
            self.answer(200, "thank you")

    def do_GET(self) -> None:
        """Return how many different orders were accepted."""
        self.answer(200, str(len(accepted)))

    def answer(self, status: int, text: str) -> None:
        """Send a response with one line of text."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


ThreadingHTTPServer(("", 8080), Shop).serve_forever()
