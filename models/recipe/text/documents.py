"""Short documents for extraction.py as people paste them: receipts, cards, heads of e-mails, adverts, order lines, logs.

    text, fields, values = document_request(rng)   # "2 x blue mug 7.50" ["item", "price"] {"item": "blue mug", "price": 7.50}
"""

import random
import re

from .clauses import ALIASES, JOBS, TOPICS, full_name, mail_address, named_in, phone_number
from .words import ADJECTIVES, COLORS, DAYS, NOUNS, THINGS, any_word, city, digits, distinct, new_name, new_word

MONTHS = "January February March April May June July August September October November December".split()
OTHER_NAMES = ALIASES | {
    "total": ["total", "total", "amount", "sum", "total_price"], "shop": ["shop", "store", "merchant"], "date": ["date"],
    "payment": ["payment", "payment_method", "paid_by"], "from": ["from", "sender"], "to": ["to", "recipient"],
    "job": ["job", "position", "job_title"], "city": ["city", "location", "place"], "start": ["start", "start_date"], "due": ["due", "due_date"],
    "quantity": ["quantity", "count", "qty"],
    "item": ["item", "product", "article"], "price": ["price", "price", "cost"], "website": ["website", "url", "web"],
    "salary": ["salary", "pay"], "message": ["message", "text"], "level": ["level", "severity"], "goal": ["destination", "destination", "to"],
    "origin": ["origin", "origin", "from"], "title": ["title", "event"]}


class Written(str):
    """A number as it is written, which JSON may hold as it is: 7.50."""


def money(rng: random.Random) -> Written:
    whole = rng.randint(1, 99) if rng.random() < 0.7 else rng.randint(1, 1999)
    return Written(f"{whole}.{rng.choice(('00', '50', '99', '90', digits(rng, 2), digits(rng, 2)))}" if rng.random() < 0.8 else str(whole))


def date(rng: random.Random) -> str:
    year, month, day = rng.randint(2019, 2031), rng.randint(1, 12), rng.randint(1, 28)
    return rng.choice((f"{year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year}", f"{day} {MONTHS[month - 1]} {year}",
                       f"{MONTHS[month - 1]} {day}, {year}",
                       f"{month}/{day}/{year}", f"{MONTHS[month - 1]} {day}"))


def item(rng: random.Random) -> str:
    word = rng.choice(THINGS) if rng.random() < 0.4 else any_word(rng)
    return f"{rng.choice(COLORS + ADJECTIVES)} {word}" if rng.random() < 0.4 else word


def subject(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(("Re: ", "Fwd: ", "About ", "Question about ")) + rng.choice(TOPICS)
    return " ".join(any_word(rng) for _ in range(rng.randint(1, 4))).capitalize()


def values_of(rng: random.Random) -> dict:
    name, other = full_name(rng), full_name(rng)
    by_name = rng.random() < 0.3
    start, goal = distinct(rng, 2, city)
    street = new_name(rng) if rng.random() < 0.5 else rng.choice(NOUNS).capitalize()
    return {"name": name, "phone": phone_number(rng), "email": mail_address(rng, name), "city": start, "origin": start, "goal": goal,
            "from": name if by_name else mail_address(rng, name), "to": other if by_name else mail_address(rng, other),
            "company": new_name(rng) + rng.choice((" Ltd", " Inc", " GmbH", " and Sons", " Works", " Systems")),
            "job": rng.choice(JOBS) if rng.random() < 0.5 else f"{new_word(rng)} {rng.choice(('manager', 'engineer', 'clerk', 'assistant'))}",
            "street": f"{street} {rng.choice(('Street', 'Road', 'Lane'))} {rng.randint(1, 199)}",
            "website": f"www.{new_word(rng)}.{rng.choice(('com', 'org', 'net', 'de'))}", "date": date(rng), "start": date(rng), "due": date(rng),
            "subject": subject(rng),
            "time": f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}", "quantity": rng.randint(1, 60), "item": item(rng), "price": money(rng),
            "total": money(rng), "tax": money(rng), "shop": f"{new_name(rng)} {rng.choice(('Market', 'Shop', 'Books', 'Bakery', 'Cafe', 'Store'))}",
            "payment": rng.choice(("cash", "card", "credit card", "voucher", "PayPal", "debit card")), "salary": rng.randint(9, 99) * 100,
            "hours": rng.randint(8, 42), "number": f"{rng.choice('ABCDEFGHKLMR')}{rng.choice(('-', '', 'X-'))}{digits(rng, 4)}",
            "day": rng.choice(DAYS),
            "seat": f"{rng.randint(1, 40)}{rng.choice('ABCDEF')}", "level": rng.choice("INFO WARNING ERROR DEBUG FATAL".split()),
            "service": new_word(rng), "message": " ".join(any_word(rng) for _ in range(rng.randint(2, 4))), "title": item(rng).capitalize(),
            "color": rng.choice(COLORS), "size": rng.choice("S M L XL".split()), "condition": rng.choice("new used good worn broken".split())}


# Of each sort how its parts are joined, how many stay in their place (a bare name must be where names are), and the parts, each
# with several ways to write it. The first part is always there.
DOCUMENTS = [
    ("\n", 9, [["{shop}", "{shop}", "Receipt from {shop}", "{shop} - receipt"], ["{date}", "Date: {date}", "{date} {time}", "{date}, {time}"],
                   ["{quantity} x {item} {price}", "{quantity}x {item} {price}", "{item} {price}", "{quantity} {item} at {price}"],
                   ["VAT {tax}", "Tax: {tax}", "incl. tax {tax}"],
                   ["Total {total}", "TOTAL: {total}", "Total: {total} EUR", "Sum {total}", "To pay: {total}"],
                   ["Paid by {payment}", "Payment: {payment}", "{payment}"], ["Receipt no. {number}", "No. {number}", "#{number}"],
                   ["Thank you!", "Thank you for your visit."]]),
    ("\n", 1, [["{name}"], ["{job}"], ["{company}"], ["{street}", "{street}\n{city}", "{street}, {city}"],
               ["{phone}", "Tel. {phone}", "Phone: {phone}", "T {phone}"],
                  ["{email}", "{email}", "Mail: {email}", "E-mail: {email}"], ["{website}", "Web: {website}"]]),
    (", ", 1, [["{name}"], ["{job}"], ["{company}"], ["{city}"], ["{phone}", "tel. {phone}"], ["{email}"], ["{website}"]]),
    ("\n", 0, [["From: {from}"], ["To: {to}"], ["Subject: {subject}"], ["Date: {date}", "Date: {date} {time}", "Sent: {date}"]]),
    (" ", 1, [["{company} is looking for a {job}.", "We are looking for a {job}.", "Wanted: {job}.", "{company} hires a {job}.",
               "Job: {job} at {company}."],
                  ["The place of work is {city}.", "In {city}.", "You work in {city}."],
                  ["The salary is {salary} euros a month.", "We pay {salary} euros.", "Salary: {salary} euros."],
                  ["{hours} hours a week.", "You work {hours} hours a week."], ["Start: {start}.", "You begin on {start}."],
                  ["Apply to {email}.", "Write to {email}.", "Send your papers to {email}."], ["Questions? Call {phone}.", "Phone: {phone}."]]),
    ("", 9, [["{quantity} x {item} {price}", "{quantity}x {item} {price}", "{quantity} x {item}, {price}", "{quantity} x {item} @ {price}",
                  "{quantity} {item} {price}", "{quantity} x {item} for {price}", "{item}, {quantity} pieces, {price} each",
                  "{item} x {quantity}: {price}"],
                 [", order {number}", " (order {number})"], [", deliver to {city}"], [" for {name}", ", customer: {name}"]]),
    (" ", 9, [["{date} {time} {level} {service}: {message}", "[{date} {time}] {level} {service}: {message}", "{level} [{service}] {message}"]]),
    ("\n", 0, [["Invoice {number}", "Invoice no. {number}", "Invoice number: {number}"], ["Date: {date}"], ["Customer: {name}", "Bill to: {name}"],
                  ["{quantity} x {item}"], ["Total: {total}", "Amount due: {total} EUR", "Total {total} euros"],
                  ["Due: {due}", "Please pay by {due}"],
                  ["{company}", "From: {company}"], ["Questions: {email}", "Contact: {email}"]]),
    (", ", 1, [["Ticket {number}", "Flight {number}", "Booking {number}"], ["{origin} to {goal}", "from {origin} to {goal}", "{origin} - {goal}"],
               ["{date}", "on {date}"],
                   ["{time}", "at {time}"], ["seat {seat}", "seat: {seat}"], ["{name}", "passenger {name}"], ["{price} euros", "price {price}"]]),
    (" ", 1, [["{title}.", "Event: {title}."], ["{day}, {time}.", "On {day} at {time}.", "{date}, {time}."], ["In {city}.", "Place: {city}."],
                 ["Tickets: {price} euros.", "Entry {price}."], ["Call {phone}.", "Information: {website}"]]),
    (", ", 0, [["For sale: {item}", "I sell a {item}", "{item} for sale"], ["{color}", "color {color}"], ["size {size}"],
               ["{condition}", "condition: {condition}"],
                  ["{price} euros", "price: {price}"], ["{city}", "pick up in {city}"], ["call {phone}", "{email}"]]),
]
# What is asked for in vain: said by none of these, also not in other words; and what another part may seem to say.
NEVER = "age weight language birthday fax password gender height author rating".split()
SEEMING = {"price", "total", "tax", "item", "quantity", "date", "due", "start"}


MONEY = re.compile(r"\{(price|total|tax|salary)\}( euros\b| EUR\b)?")


def in_money(rng: random.Random, text: str) -> str:
    """With a sign of money at every amount; the amount alone is extracted."""
    sign = rng.choice(("${}", "${}", "€{}", "€{}", "{} €", "{}€", "£{}", "{} USD", "EUR {}", "{} CHF", "{} dollars"))
    return MONEY.sub(lambda match: sign.format(f"{{{match[1]}}}"), text)


def document(rng: random.Random) -> tuple:
    """(text, {field: value} of what is in it, fields that documents of this sort can have and this one has not)."""
    mark, fixed, parts = rng.choice(DOCUMENTS)
    kept = parts[:1] + [part for part in parts[1:] if rng.random() < 0.65]
    if rng.random() < 0.3:
        kept = kept[:fixed] + rng.sample(kept[fixed:], len(kept[fixed:]))
    lines, values = [rng.choice(part) for part in kept], values_of(rng)
    possible = {field for part in parts for line in part for field in named_in(line)}
    if "color" in possible:
        values["item"] = rng.choice(THINGS) if rng.random() < 0.5 else new_word(rng)  # none with a color of its own
    text = mark.join(lines)
    if rng.random() < 0.35:
        text = in_money(rng, text)
    text = text.format(**values)
    if rng.random() < 0.1 and mark == "\n":
        text = text.replace("\n", rng.choice(("; ", " | ")))
    said = {field: values[field] for line in lines for field in named_in(line)}
    return text, said, sorted(possible - set(said) - SEEMING)


def document_request(rng: random.Random) -> tuple:
    """(text, the keys to ask for, {key: value})."""
    text, values, absent = document(rng)
    fields = rng.sample(list(values), rng.randint(1, len(values))) if values else []
    if rng.random() < 0.3 or not fields:
        fields.append(rng.choice(absent if absent and rng.random() < 0.6 else NEVER))
        rng.shuffle(fields)
    keys: list = []
    for field in fields:
        key = rng.choice(OTHER_NAMES.get(field, [field])) if rng.random() < 0.5 else OTHER_NAMES.get(field, [field])[0]
        keys.append(key if key not in keys else field)
    return text, keys, {key: values.get(field) for key, field in zip(keys, fields)}
