"""Drives a running server with frameworks that are clients of OpenAI's API: `drive_frameworks.py http://127.0.0.1:PORT`.

LangChain, LlamaIndex, OpenAI's Agents SDK, and lm-eval's `local-completions`. Texts are the bundled story teller's; what is chosen by a schema or
a tool's parameters holds for any model.
"""

import asyncio
import importlib.metadata
import os
import sys

# Nothing is to be sent or fetched but from the server.
os.environ.update(HF_HUB_OFFLINE="1", LANGSMITH_TRACING="false", OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1")

from typing import Literal

import openai
from pydantic import BaseModel

QUESTION = "Tell me a story about a fox named Pip."
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        sys.exit(f"failed: {what}")


class Place(BaseModel):
    """Where to look."""

    place: Literal["barn", "pond"]


def langchain(base, model):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

    given = dict(base_url=base, model=model, max_retries=0)
    chat = ChatOpenAI(temperature=0, max_tokens=40, **given)
    whole = chat.invoke(QUESTION)
    check(whole.content.startswith("Pip") and whole.usage_metadata["output_tokens"] == 40, f"LangChain: an answer: {whole}")
    check(whole.response_metadata["finish_reason"] == "length", f"LangChain: its end: {whole}")
    pieces = list(chat.stream(QUESTION, stream_usage=True))
    check("".join(piece.content for piece in pieces) == whole.content, "LangChain: a stream joins to the answer")
    check(sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) == 40, "LangChain: usage of a stream")
    check([answer.content for answer in chat.batch([QUESTION] * 3)] == [whole.content] * 3, "LangChain: a batch")
    responses = ChatOpenAI(temperature=0, max_tokens=40, use_responses_api=True, **given).invoke(QUESTION)
    check(responses.text == whole.content, f"LangChain: through responses: {responses}")

    @tool
    def look(place: Literal["barn", "pond"]) -> str:
        """Looks at a place."""
        return f"nothing in the {place}"

    longer = ChatOpenAI(temperature=0, max_tokens=200, **given)
    asked = longer.bind_tools([look], tool_choice="look", parallel_tool_calls=False)
    called = asked.invoke(QUESTION)
    check(called.tool_calls[0]["args"]["place"] in ("barn", "pond"), f"LangChain: a call: {called}")
    result = look.invoke(called.tool_calls[0])
    after = chat.invoke([("user", QUESTION), called, result])
    check(after.usage_metadata["input_tokens"] > whole.usage_metadata["input_tokens"], f"LangChain: after a call: {after}")
    found = longer.with_structured_output(Place).invoke(QUESTION)
    check(found.place in ("barn", "pond"), f"LangChain: a structured answer: {found}")

    text = OpenAI(temperature=0, max_tokens=12, **given).invoke("Once")
    check(text.startswith(" upon a time"), f"LangChain: a completion: {text}")
    vectors = OpenAIEmbeddings(check_embedding_ctx_length=False, **given).embed_documents(["a fox named Pip", "snow"])
    check(len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-3, "LangChain: embeddings")


def llama_index(base, model):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    given = dict(api_base=base, api_key="none", model=model, temperature=0, max_retries=0, context_window=1024)
    chat = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=40, **given)
    question = [ChatMessage(role="user", content=QUESTION)]
    whole = chat.chat(question).message.content
    check(whole.startswith("Pip"), f"LlamaIndex: an answer: {whole}")
    check("".join(piece.delta or "" for piece in chat.stream_chat(question)) == whole, "LlamaIndex: a stream")
    text = OpenAILike(is_chat_model=False, max_tokens=12, **given)
    check(text.complete("Once").text.startswith(" upon a time"), "LlamaIndex: a completion")
    check("".join(piece.delta for piece in text.stream_complete("Once")) == text.complete("Once").text, "LlamaIndex: its stream")
    longer = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=200, **given)
    found = longer.as_structured_llm(Place).chat(question).raw
    check(found.place in ("barn", "pond"), f"LlamaIndex: a structured answer: {found}")


def agents(base, model):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool

    looked = []

    @function_tool
    def look(place: Literal["barn", "pond"]) -> str:
        """Looks at a place."""
        looked.append(place)
        return f"nothing in the {place}"

    async def run():
        client = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
        for kind in OpenAIChatCompletionsModel, OpenAIResponsesModel:
            run = kind(model=model, openai_client=client)
            # An answer that is cut is an error in a stream of the SDK: this one ends by itself.
            settings = ModelSettings(temperature=0, max_tokens=400)
            teller = Agent(name="teller", model=run, model_settings=settings)
            told = (await Runner.run(teller, QUESTION)).final_output
            check(told.startswith("Pip"), f"Agents, {kind.__name__}: an answer: {told}")
            stream = Runner.run_streamed(teller, QUESTION)
            events = [event.type async for event in stream.stream_events()]
            check(stream.final_output == told and len(events) > 10, f"Agents, {kind.__name__}: a stream: {stream.final_output}")
            settings = ModelSettings(temperature=0, max_tokens=200, tool_choice="required", parallel_tool_calls=False)
            looker = Agent(
                name="looker", model=run, model_settings=settings, tools=[look], tool_use_behavior="stop_on_first_tool"
            )
            before = len(looked)
            result = (await Runner.run(looker, QUESTION)).final_output
            check(len(looked) == before + 1 and result == f"nothing in the {looked[-1]}", f"Agents, {kind.__name__}: a call: {result}")
            settings = ModelSettings(temperature=0, max_tokens=200)
            typed = Agent(name="typed", model=run, model_settings=settings, output_type=Place)
            found = (await Runner.run(typed, QUESTION)).final_output
            check(found.place in ("barn", "pond"), f"Agents, {kind.__name__}: a typed answer: {found}")
        await client.close()

    asyncio.run(run())


def lm_eval(base, model):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    requests = lambda kind, *arguments: [Instance(kind, {}, given, index) for index, given in enumerate(arguments)]
    client = openai.OpenAI(base_url=base, api_key="none")
    text = client.completions.create(model=model, prompt="Once upon", temperature=0, max_tokens=6).choices[0].text
    scores = []
    for given in dict(batch_size=1), dict(batch_size=4), dict(num_concurrent=3):
        lm = LocalCompletionsAPI(base_url=base + "/completions", model=model, max_length=1024, **given)
        check(lm.tokenizer_backend == "remote", f"lm-eval: the server encodes: {lm.tokenizer_backend}")
        pairs = [("Once upon", text), ("Once upon", " the moon"), ("The fox", " ran to the barn."), ("", "Once")]
        found = lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
        check(all(score < 0 for score, _ in found), f"lm-eval: log probabilities: {found}")
        check(found[0][1] and not found[1][1] and found[0][0] > found[1][0], f"lm-eval: the greedy one: {found}")
        scores.append([score for score, _ in found])
        rolling = lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("Once upon a time there was a fox.",)), disable_tqdm=True)
        check(rolling[0] < 0, f"lm-eval: a text: {rolling}")
        until = {"until": ["."], "max_gen_toks": 40, "temperature": 0, "do_sample": False}
        [said] = lm.generate_until(requests("generate_until", ("Once upon", until)), disable_tqdm=True)
        check(said and "." not in said, f"lm-eval: a text until a word: {said!r}")
    close = all(abs(a - b) < 1e-3 for other in scores[1:] for a, b in zip(scores[0], other))
    check(close, f"lm-eval: batches change nothing: {scores}")


def main():
    base = sys.argv[1] + "/v1"
    model = openai.OpenAI(base_url=base, api_key="none").models.list().data[0].id
    for drive in langchain, llama_index, agents, lm_eval:
        drive(base, model)
    packages = ["langchain-openai", "llama-index-llms-openai-like", "openai-agents", "lm-eval"]
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"{checks} checks with {versions}")


main()
