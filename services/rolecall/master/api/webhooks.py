"""The route `/webhook-secret`, with which receivers of webhooks verify them."""

from fastapi import APIRouter, Depends

from rolecall.master.api.auth import Caller, Running, needs
from rolecall.master.webhooks import secret_of
from rolecall.spec.access import Scope
from rolecall.spec.webhook import WebhookSecret

router = APIRouter(tags=["access"], dependencies=[Depends(needs(Scope.SUBMIT, Scope.ADMIN))])


@router.get("/webhook-secret", summary="Show the webhook secret")
async def show_webhook_secret(master: Running, caller: Caller) -> WebhookSecret:
    """Return the secret that signs the webhooks of the token's own jobs (Standard Webhooks)."""
    return WebhookSecret(secret=secret_of(master.signing_key, caller.name))
