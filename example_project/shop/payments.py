"""Asking the payment gateway, and keeping what it confirmed."""

from __future__ import annotations

import http.client
import json
from decimal import Decimal
from urllib.parse import urlsplit

from django.conf import settings

from shop.models import Customer, Order, Payment


class GatewayError(Exception):
    """The gateway gave no confirmation; it may have charged all the same, so ask again for the same order."""


def charge(order: Order) -> Decimal:
    """
    Enter the order in its customer's account and return what the customer has been charged so far.

    Reads, adds, writes: two at once for one customer would lose one. Whoever calls makes sure that there is only one.
    """
    customer = Customer.objects.get(pk=order.customer_id)
    customer.charged += order.amount
    customer.save(update_fields=["charged"])
    return customer.charged


def ask_gateway(order: Order) -> str:
    """Return the gateway's reference for the charge, or raise GatewayError. Asking twice charges once."""
    address = urlsplit(settings.SHOP_GATEWAY_URL)
    connection = http.client.HTTPConnection(address.netloc, timeout=10)
    try:
        body = json.dumps({"order": order.order_id, "cents": int(order.amount * 100)})
        connection.request("POST", "/charges", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status == http.HTTPStatus.OK:
            return str(answer["reference"])
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise GatewayError(f"The gateway did not answer: {error!r}") from error
    finally:
        connection.close()
    raise GatewayError(f"The gateway answered {response.status}: {answer.get('error', '')}")


def record(order: Order, reference: str) -> bool:
    """Return True if this call recorded the payment, False if it was recorded before."""
    return Payment.objects.get_or_create(order=order, defaults={"amount": order.amount, "reference": reference})[1]
