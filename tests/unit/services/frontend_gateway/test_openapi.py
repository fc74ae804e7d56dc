"""The document of the interface: valid, complete, and true to what is answered."""

from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import TypeAdapter

from services.frontend_gateway.core.problems import KINDS
from services.frontend_gateway.http import models, openapi, ops_models
from tests.rig.gateway import gateway_rig


def test_the_document_is_valid_openapi() -> None:
    assert list(OpenAPIV31SpecValidator(openapi.document()).iter_errors()) == []


def test_examples_fit_their_models() -> None:
    for name, example in openapi.EXAMPLES.items():
        module = next(one for one in (models, ops_models) if hasattr(one, name))
        TypeAdapter(getattr(module, name)).validate_python(example)


def test_every_operation_has_an_id_and_says_what_can_go_wrong() -> None:
    ids = [operation.id for operation in openapi.OPERATIONS]
    assert len(ids) == len(set(ids))
    for path in openapi.document()["paths"].values():
        for operation in path.values():
            problems = [
                answer
                for answer in operation["responses"].values()
                if "application/problem+json" in answer.get("content", {})
            ]
            assert problems
    slugs = {slug for operation in openapi.OPERATIONS for slug in operation.problems}
    assert slugs <= set(KINDS)


async def test_every_path_of_the_document_is_answered() -> None:
    async with gateway_rig() as rig:
        served = (await rig.client.get("/openapi.json")).json()
        assert served == openapi.document()
        for path, methods in served["paths"].items():
            for method in methods:
                answer = await rig.client.request(
                    method, path.replace("{conversation_id}", "x").replace("{turn_id}", "x")
                )
                assert answer.status_code not in (405, 500), path
                if answer.status_code == 404:
                    assert "no such path" not in answer.json()["detail"]


async def test_answers_are_what_the_document_says() -> None:
    async with gateway_rig() as rig:
        conversation = (await rig.client.post("/v1/conversations", json={"title": "T"})).json()
        models.CreatedConversation.model_validate(conversation)
        accepted = (await rig.post(conversation["id"], "Hi")).json()
        models.AcceptedTurn.model_validate(accepted)
        for path, model in (
            ("/v1/conversations", models.ConversationList),
            (f"/v1/conversations/{conversation['id']}", models.Conversation),
            (f"/v1/conversations/{conversation['id']}/messages", models.MessageList),
            (f"/v1/turns/{accepted['turn_id']}", models.Turn),
        ):
            body = (await rig.client.get(path)).json()
            assert set(model.model_fields) == set(body), path
            model.model_validate(body)
        problem = (await rig.client.get(f"/v1/turns/{accepted['turn_id']}/plan")).json()
        models.ProblemDocument.model_validate(problem)
