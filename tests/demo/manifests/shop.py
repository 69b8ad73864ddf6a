"""A shop that takes orders: it wants euros, and it stumbles over a few orders before it takes them."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STUMBLES = 2
seen: dict[str, int] = {}
taken: set[str] = set()


class Shop(BaseHTTPRequestHandler):
    """Answers 200, 422 for a currency it does not know, 503 for a flaky order's first tries."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take one order."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tries = seen[order["id"]] = seen.get(order["id"], 0) + 1
        if order["currency"] != "EUR":
            self.answer(422, f"currency {order['currency']} is not known")
        elif order.get("flaky") and tries <= STUMBLES:
            self.answer(503, "try again")
        else:
            taken.add(order["id"])
            self.answer(200, "thank you")

    def do_GET(self) -> None:
        """How many different orders were taken."""
        self.answer(200, str(len(taken)))

    def answer(self, status: int, text: str) -> None:
        """Say it in a line."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Orders are nobody's business."""


ThreadingHTTPServer(("", 8080), Shop).serve_forever()
