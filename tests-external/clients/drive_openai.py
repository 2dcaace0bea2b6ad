"""Drives a running server with OpenAI's client: `drive_openai.py http://127.0.0.1:PORT`.

The answers are held to be well formed, by the client's own types, and consistent with one another; texts are the bundled story teller's.
"""

import concurrent.futures
import json
import sys
import urllib.request

import openai

QUESTION = [{"role": "user", "content": "Tell me a story about a fox named Pip."}]
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        sys.exit(f"failed: {what}")


def refused(call, status, what):
    try:
        call()
    except openai.APIStatusError as error:
        check(error.status_code == status and error.body["message"], f"{what}: {error!r}")
        return
    check(False, f"{what} was not refused")


def chat(client, model):
    ask = lambda **more: client.chat.completions.create(model=model, messages=QUESTION, temperature=0, **more)
    whole = ask(max_tokens=40)
    text = whole.choices[0].message.content
    check(text.startswith("Pip") and whole.choices[0].finish_reason == "length", f"an answer: {whole}")
    check(whole.usage.completion_tokens == 40, f"usage: {whole.usage}")
    check(whole.usage.total_tokens == whole.usage.prompt_tokens + 40, f"usage: {whole.usage}")
    ended = ask()
    check(ended.choices[0].finish_reason == "stop", "an answer ends by itself")
    check(ended.choices[0].message.content.startswith(text), "a longer answer begins as a shorter one")

    stream = list(ask(max_tokens=40, stream=True, stream_options={"include_usage": True}))
    deltas = [choice.delta for chunk in stream for choice in chunk.choices]
    check(deltas[0].role == "assistant", f"the first chunk: {deltas[0]}")
    check("".join(delta.content or "" for delta in deltas) == text, "a stream joins to the answer")
    check(len(deltas) > 10, "a stream comes in pieces")
    check(stream[-2].choices[0].finish_reason == "length", f"the last choice: {stream[-2]}")
    check(stream[-1].usage.completion_tokens == 40 and not stream[-1].choices, f"usage: {stream[-1]}")

    scored = ask(max_tokens=8, logprobs=True, top_logprobs=3).choices[0]
    tokens = scored.logprobs.content
    check("".join(token.token for token in tokens) == scored.message.content, f"tokens: {tokens}")
    check(all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens), f"tokens: {tokens}")
    check(all(token.top_logprobs[0].token == token.token for token in tokens), "a greedy answer has the best tokens")

    cut = ask(stop=["house", "never said"]).choices[0]
    check(cut.finish_reason == "stop" and "house" not in cut.message.content, f"a stop string: {cut}")
    check(text.startswith(cut.message.content) and cut.message.content.endswith(" "), f"a stop string: {cut}")

    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    same = client.chat.completions.create(model=model, messages=parts, temperature=0, max_tokens=40)
    check(same.choices[0].message.content == text, "content in parts")

    drawn = lambda seed: client.chat.completions.create(
        model=model, messages=QUESTION, temperature=1.2, seed=seed, n=3, max_tokens=20
    )
    first, again, other = ([choice.message.content for choice in drawn(seed).choices] for seed in (7, 7, 8))
    check(first == again, f"a seed repeats: {first}, {again}")
    check(first != other and len(set(first)) > 1, f"seeds and choices differ: {first}, {other}")

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: ask(max_tokens=40).choices[0].message.content, range(32)))
    check(all(found == text for found in texts), "32 at once say what one says alone")

    # Whoever leaves in the middle disturbs nobody.
    left = ask(stream=True)
    next(iter(left))
    left.close()
    check(ask(max_tokens=40).choices[0].message.content == text, "after a reader left")

    create = client.chat.completions.create
    refused(lambda: create(model=model, messages=[]), 400, "no messages")
    refused(lambda: create(model=model, messages=QUESTION, temperature=-1), 400, "a temperature below 0")
    refused(lambda: create(model=model, messages=QUESTION, n=1000), 400, "a thousand choices")
    refused(lambda: create(model=model, messages=QUESTION, top_logprobs=2), 400, "top_logprobs without logprobs")
    refused(lambda: create(model=model, messages=QUESTION, response_format={"type": "xml"}), 400, "an unknown format")
    refused(
        lambda: create(model=model, messages=[{"role": "user", "content": "fox " * 5000}]), 400, "a long prompt"
    )
    refused(lambda: create(model=model, messages=[{"role": "user", "content": "x" * 3_000_000}]), 413, "megabytes")


def tools(client, model):
    places = {"type": "object", "properties": {"place": {"enum": ["barn", "pond"]}}, "required": ["place"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "look", "parameters": places}}
    create = lambda **more: client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=200, **more)
    asked = dict(tools=[tool], tool_choice={"type": "function", "function": {"name": "look"}}, parallel_tool_calls=False)
    whole = create(**asked).choices[0]
    check(whole.finish_reason == "tool_calls", f"a call: {whole}")
    call = whole.message.tool_calls[0].function
    check(call.name == "look" and json.loads(call.arguments)["place"] in ("barn", "pond"), f"a call: {call}")
    deltas = [choice.delta for chunk in create(stream=True, **asked) for choice in chunk.choices]
    parts = [part.function for delta in deltas for part in delta.tool_calls or []]
    check("".join(part.arguments or "" for part in parts) == call.arguments, f"a streamed call: {parts}")
    format = {"type": "json_schema", "json_schema": {"name": "look", "strict": True, "schema": places}}
    answer = create(response_format=format).choices[0]
    check(answer.finish_reason == "stop" and json.loads(answer.message.content)["place"] in ("barn", "pond"), f"JSON: {answer}")


def responses(client, model):
    ask = lambda **more: client.responses.create(model=model, input=QUESTION, temperature=0, max_output_tokens=40, **more)
    whole = ask()
    check(whole.status == "incomplete" and whole.output_text.startswith("Pip"), f"a response: {whole}")
    check(whole.usage.output_tokens == 40, f"usage: {whole.usage}")
    events = list(ask(stream=True))
    check(events[0].type == "response.created" and events[-1].type == "response.incomplete", f"events: {events[-1]}")
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check(deltas == whole.output_text == events[-1].response.output_text, "a stream joins to the response")
    places = {"type": "object", "properties": {"place": {"enum": ["barn", "pond"]}}, "required": ["place"], "additionalProperties": False}
    tool = {"type": "function", "name": "look", "parameters": places, "strict": True}
    called = client.responses.create(
        model=model, input=QUESTION, temperature=0, tools=[tool], tool_choice={"type": "function", "name": "look"}, parallel_tool_calls=False
    ).output[0]
    check(called.type == "function_call" and json.loads(called.arguments)["place"] in ("barn", "pond"), f"a call: {called}")
    refused(lambda: ask(previous_response_id="resp_1"), 400, "a stored response")


def completions(client, model):
    create = lambda prompt, **more: client.completions.create(model=model, prompt=prompt, temperature=0, **more)
    whole = create("Once", max_tokens=12)
    text = whole.choices[0].text
    check(text.startswith(" upon a time"), f"a completion: {whole}")
    both = create(["Once", "The fox"], max_tokens=12)
    check([choice.index for choice in both.choices] == [0, 1], f"two prompts: {both}")
    check(both.choices[0].text == text and both.usage.completion_tokens == 24, f"two prompts: {both}")
    check("".join(chunk.choices[0].text for chunk in create("Once", max_tokens=12, stream=True)) == text, "a stream")
    scored = create("Once", max_tokens=5, logprobs=2).choices[0]
    check("".join(scored.logprobs.tokens) == scored.text, f"tokens: {scored}")
    check(all(len(top) == 2 for top in scored.logprobs.top_logprobs), f"tokens: {scored}")
    echo = create("Once upon", max_tokens=0, echo=True, logprobs=1).choices[0]
    check(echo.text == "Once upon" and echo.logprobs.token_logprobs[0] is None, f"an echo: {echo}")
    refused(lambda: create(""), 400, "an empty prompt")
    refused(lambda: create("Once", extra_body={"guided_json": {}}), 400, "an unknown field")
    refused(lambda: client.completions.create(model="other", prompt="Once"), 404, "another model")
    refused(lambda: create([1, 2, 1_000_000]), 400, "a token beyond the vocabulary")


def embeddings(client, model):
    texts = ["a fox named Pip", "a fox called Pip", "snow on the mountain"]
    found = client.embeddings.create(model=model, input=texts)
    vectors = [item.embedding for item in found.data]
    product = lambda a, b: sum(x * y for x, y in zip(a, b))
    check(all(abs(product(vector, vector) - 1) < 1e-3 for vector in vectors), "vectors have length 1")
    check(product(vectors[0], vectors[1]) > product(vectors[0], vectors[2]), "what means the like is near")
    # The client asks for base64 unless it is told otherwise.
    floats = client.embeddings.create(model=model, input=texts[0], encoding_format="float").data[0].embedding
    check(max(abs(a - b) for a, b in zip(floats, vectors[0])) < 1e-5, "both encodings say the same")
    short = client.embeddings.create(model=model, input=texts[0], dimensions=8).data[0].embedding
    check(len(short) == 8 and abs(product(short, short) - 1) < 1e-3, "shorter vectors have length 1")
    refused(lambda: client.embeddings.create(model=model, input=[]), 400, "no text")


def the_rest(client, address):
    names = [model.id for model in client.models.list()]
    check(len(names) == 1 and client.models.retrieve(names[0]).id == names[0], f"models: {names}")
    refused(lambda: client.models.retrieve("none"), 404, "another model")
    get = lambda path: urllib.request.urlopen(address + path).read().decode()
    check(json.loads(get("/health"))["status"] == "ok", "health")
    metrics = get("/metrics")
    check("mlxcel_generated_tokens_total" in metrics and 'path="/v1/chat/completions",status="200"' in metrics, metrics)
    check("<title>mlxcel" in get("/") and "fetch(" in get("/chat.js"), "the page")
    return names[0]


def main():
    address = sys.argv[1]
    client = openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    chat(client, model)
    tools(client, model)
    responses(client, model)
    completions(client, model)
    embeddings(client, model)
    the_rest(client, address)
    print(f"{checks} checks with openai {openai.__version__}")


main()
