"""
A greeting by mail for who orders for the first time.

It goes out at least once, like a receipt, and the Message-ID tells the second copy. It goes by another mail host than the
receipts, one to practise on: it does not know every fiftieth customer, however often it is asked.
"""

from __future__ import annotations

from typing import Final

from django.core.mail import EmailMessage

from shop.models import Customer, Welcome

UNKNOWN_EVERY: Final = 50


class RefusedError(Exception):
    """The mail host does not take a mail to this address."""


def send(customer: Customer) -> bool:
    """Return True if this call mailed the greeting, False if it was mailed before; raises RefusedError."""
    if Welcome.objects.filter(customer=customer).exists():
        return False
    hand_over(letter(customer), customer)
    return Welcome.objects.get_or_create(customer=customer, defaults={"sent_to": customer.email})[1]


def letter(customer: Customer) -> EmailMessage:
    """Return the greeting of a customer."""
    return EmailMessage(
        subject="Welcome to the record shop",
        body=f"You are our customer number {customer.customer_id} now. Thank you for your first order.\n",
        to=[customer.email],
        headers={"Message-ID": f"<welcome-{customer.customer_id}@shop.example.com>"},
    )


def hand_over(mail: EmailMessage, customer: Customer) -> None:
    """Give a mail to the host, or raise RefusedError."""
    if is_refused(customer.customer_id):
        raise RefusedError(f"550 {customer.email}: no such mailbox")
    mail.send()


def is_refused(customer_id: int) -> bool:
    """Return whether the host does not know this customer."""
    return customer_id % UNKNOWN_EVERY == 0
