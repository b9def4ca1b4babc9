"""The title and a picture of a page that a sandbox serves itself: `python3 example.py [TAG]`."""

import sys

from forkd import Sandbox

SERVE = """
const server = require('http').createServer((_, response) => {
  response.setHeader('content-type', 'text/html');
  response.end('<title>A page from inside</title><h1>It works</h1><a href="/next">next</a>');
});
await new Promise((listening) => server.listen(8080, '127.0.0.1', listening));
"""

with Sandbox(sys.argv[1] if sys.argv[1:] else "playwright-browser", timeout=300) as sandbox:
    sandbox.run_code(SERVE)
    sandbox.run_code("await page.goto('http://127.0.0.1:8080/'); undefined", timeout=300)
    print(sandbox.eval("await page.title()", timeout=300))
    print(sandbox.eval("await page.locator('a').getAttribute('href')", timeout=300))
    picture = sandbox.run_code("await page.screenshot()", timeout=300).outputs[0].png
    assert picture is not None
    print(picture[1:4].decode(), "of more than 1 KiB" if len(picture) > 1024 else "too small")
