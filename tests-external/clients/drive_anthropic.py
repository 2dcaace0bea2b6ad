"""Drives a running server with Anthropic's client: `drive_anthropic.py http://127.0.0.1:PORT`.

The answers are held to be well formed, by the client's own types, and consistent with one another; texts are the bundled story teller's.
"""

import sys

import anthropic

QUESTION = [{"role": "user", "content": "Tell me a story about a fox named Pip."}]
# The client has no argument for it.
GREEDY = {"temperature": 0}
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        sys.exit(f"failed: {what}")


def refused(call, error, what):
    try:
        call()
    except error as refusal:
        check(refusal.body["type"] == "error" and refusal.body["error"]["message"], f"{what}: {refusal!r}")
        return
    check(False, f"{what} was not refused")


def texts(client, model):
    ask = {"model": model, "messages": QUESTION, "max_tokens": 40, "extra_body": GREEDY}
    whole = client.messages.create(**ask)
    text = whole.content[0].text
    check(text.startswith("Pip") and whole.stop_reason == "max_tokens", f"an answer: {whole}")
    check(whole.role == "assistant" and whole.model == model, f"an answer: {whole}")
    check(whole.usage.output_tokens == 40, f"usage: {whole.usage}")
    with client.messages.stream(**ask) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    check("".join(pieces) == text and len(pieces) > 10, "a stream joins to the answer")
    check(final.content[0].text == text and final.stop_reason == "max_tokens", f"a streamed answer: {final}")
    check(final.usage.output_tokens == 40, f"usage: {final.usage}")
    counted = client.messages.count_tokens(model=model, messages=QUESTION, system="Be short.")
    check(counted.input_tokens > whole.usage.input_tokens + whole.usage.cache_read_input_tokens, f"{counted}")
    cut = client.messages.create(**ask, stop_sequences=["never said", "house"])
    check((cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "house"), f"a stop sequence: {cut}")
    check(text.startswith(cut.content[0].text), f"a stop sequence: {cut}")
    ended = client.messages.create(**{**ask, "max_tokens": 1000})
    check(ended.stop_reason == "end_turn", f"an answer ends by itself: {ended}")
    check(ended.content[0].text.startswith(text), "a longer answer begins as a shorter one")


def tools(client, model):
    cities = {"city": {"enum": ["Oslo", "Bergen"]}}
    schema = {"type": "object", "properties": cities, "required": ["city"], "additionalProperties": False}
    tool = {"name": "weather", "description": "The weather of a city", "input_schema": schema}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    ask = {"model": model, "max_tokens": 200, "extra_body": GREEDY, "tools": [tool], "tool_choice": choice}
    first = client.messages.create(messages=[{"role": "user", "content": "Is it raining in Oslo?"}], **ask)
    call = first.content[-1]
    check(first.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "weather", f"a call: {first}")
    check(call.input["city"] in ("Oslo", "Bergen"), f"a call: {call}")
    with client.messages.stream(messages=[{"role": "user", "content": "Is it raining in Oslo?"}], **ask) as stream:
        streamed = stream.get_final_message()
    check(streamed.content[-1].input == call.input and streamed.stop_reason == "tool_use", f"a streamed call: {streamed}")
    turns = [
        {"role": "user", "content": "Is it raining in Oslo?"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "It is."}]},
    ]
    answer = client.messages.create(**{**ask, "messages": turns, "tool_choice": {"type": "none"}})
    check(answer.content[0].type == "text" and answer.stop_reason in ("end_turn", "max_tokens"), f"an answer: {answer}")


def errors(client, model):
    ask = {"model": model, "messages": QUESTION, "max_tokens": 5}
    create = lambda **more: lambda: client.messages.create(**{**ask, **more})
    refused(create(model="other"), anthropic.NotFoundError, "another model")
    refused(create(extra_body={"temperature": -1}), anthropic.BadRequestError, "a negative temperature")
    refused(create(messages=[]), anthropic.BadRequestError, "no messages")
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/x.png"}}
    refused(create(messages=[{"role": "user", "content": [image]}]), anthropic.BadRequestError, "an image")


def main():
    client = anthropic.Anthropic(base_url=sys.argv[1], api_key="any", max_retries=0, timeout=120)
    for step in (texts, tools, errors):
        step(client, "storyteller")
    print(f"{checks} checks with anthropic {anthropic.__version__}")


main()
