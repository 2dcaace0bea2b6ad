"""Chats with a running server through its page, in a browser: `CHROMIUM=PROGRAM drive_page.py http://127.0.0.1:PORT`."""

import importlib.metadata
import os
import sys

from playwright.sync_api import expect, sync_playwright

checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        sys.exit(f"failed: {what}")


def chat(page):
    def ask(text, answers):
        page.fill("#text", text)
        page.press("#text", "Enter")
        page.wait_for_selector(f"body[data-answers='{answers}']")

    expect(page.locator("#model")).to_have_text("storyteller")
    page.fill("#temperature", "0")
    ask("Tell me a story about a fox named Pip.", 1)
    first = page.inner_text(".assistant")
    check(first.startswith("Pip"), f"an answer: {first!r}")
    check("tokens" in page.inner_text("#status"), "the speed")
    ask("And then?", 2)
    check(page.locator(".message").count() == 4, "two questions and two answers")
    page.fill("#temperature", "-1")
    page.fill("#text", "Tell me a story.")
    page.click("#send")
    error = page.inner_text(".error")
    check("temperature" in error, f"an error of the server: {error!r}")
    page.click("#clear")
    check(page.locator(".message").count() == 0, "a new chat is empty")
    page.fill("#temperature", "0")
    page.fill("#text", "Tell me a story about a fox named Pip.")
    page.click("#send")
    page.click("#send:text('Stop')")
    expect(page.locator("#send")).to_have_text("Send")
    check(page.locator(".error").count() == 0, "stopping is no error")


def main():
    faults = []
    with sync_playwright() as driver:
        # In a container, the browser's own sandbox has no rights to be made.
        browser = driver.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(sys.argv[1])
        chat(page)
        version = browser.version
        browser.close()
    check(not faults, f"errors of the script: {faults}")
    print(f"{checks} checks of the page in Chromium {version} with playwright {importlib.metadata.version('playwright')}")


main()
