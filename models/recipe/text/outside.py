"""Requests that the model was not trained for: many kinds, put together from lists and new words."""

import random

from .frames import DO, THAT, THING, WHAT, WHEN, ask
from .words import ADJECTIVES, FRUITS, LANGUAGES, NOUNS, THINGS, any_word, city, fresh, new_word, person, surname

WRITINGS = """poem story song letter essay joke novel speech review report recipe blog riddle fable play haiku limerick sonnet script
article summary biography toast slogan proverb tale diary message advert headline prayer""".split()
TOPICS = """love war history music football peace physics politics art weather winter money birthdays dinosaurs school friendship computers
philosophy dreams trees chess cooking bread mathematics medicine robots ghosts rivers cars film theatre religion insects volcanoes
travel gravity time light energy atoms evolution democracy taxes inflation stocks health sleep yoga fashion painting poetry
dancing law family children marriage climate electricity magnetism planets stars vaccines cells genes algebra geometry
chemistry biology economics astronomy grammar ethics football tennis sailing gardening photography""".split()
ROLES = ["capital", "president", "king", "queen", "mayor", "population", "area", "currency", "flag", "language", "highest mountain",
         "longest river", "prime minister", "largest city", "national dish", "oldest university", "time zone", "founder", "best museum",
         "most famous painter", "national anthem", "climate", "area code", "main airport"]
DEEDS = "invented discovered wrote built painted founded won composed designed found sold named directed created".split()
ACTS = """write draw paint sing build design invent plan book buy sell cook bake repair clean grow draw film record compose print
sketch imagine describe explain summarize review translate rewrite correct improve shorten continue criticize analyze""".split()
SKILLS = """swim ski drive dance draw cook knit paint sail dive ride climb juggle whistle fish bake garden invest meditate study""".split()
PEOPLE = "mother father brother sister boss neighbour teacher friend doctor wife husband son daughter cat dog".split()
PROGRAMS = "Python Java Rust Go C++ JavaScript Ruby Perl Haskell SQL Bash Kotlin Swift PHP Lua".split()
CODE_DEEDS = ["sorts a list", "reads a file", "adds two numbers", "prints {x}", "counts words", "draws a {o}", "finds primes", "opens a window",
              "downloads a page", "reverses a string", "plays a sound", "parses {x}", "computes a {o}", "checks a {x}"]
SNIPPETS = ["print({x})", "for i in range({n}): {x}(i)", "int main() {{ return {n}; }}", "let {x} = {n};", "SELECT {x} FROM {y}",
            "def {x}(): return {y}", "x = {n} + y", "if ({x}) {y}();"]

# What people do in a day: asked for in the frames in which Tessera's purposes are.
DEEDS_OF_A_DAY = ["{act} a {o}", "{act} the {o}", "{act} my {o}", "{act} a {a} {o}", "make {food}", "bake {food}", "cook {f}", "eat {f}",
                  "grow {f}", "{k}", "learn {l}", "speak {l}", "learn to {k}", "get to {c}", "travel to {c}", "find a job in {c}",
                  "find a hotel in {c}", "fly to {c}", "write a {w}", "write a {w} about {t}", "read a {w}", "forget {n}", "call my {p}",
                  "visit my {p}", "please my {p}", "meet {n}", "marry {n}", "find {n} {s}", "fix my {o}", "repair my {o}", "clean the {o}",
                  "sell my {o}", "lose weight", "sleep better", "earn money", "save money", "stop smoking", "boil an egg", "tie a tie",
                  "change a light bulb", "install a {o}", "build a house", "start a car", "start a company", "stop a cough", "use a {o}",
                  "run a marathon", "set the table", "set up a tent", "open a {o}", "close a {o}", "change my name", "change the oil",
                  "train a dog", "train for a race", "measure a {o}", "see the {o}", "see the sea", "stop the {o}", "understand {t}", "study {t}",
                  "teach {t}", "install {xx}", "use {xx}", "buy {xx}", "open {xx}", "program in {pl}", "install {pl}", "learn {pl}", "write {pl}",
                  "play {game}", "win at {game}", "remove a stain", "peel a {o}", "pay my taxes", "get a visa", "plant a tree", "make a fire",
                  "make friends", "become a {job}", "be happy"]
FOODS = "bread pizza soup coffee tea cake pancakes jam cheese pasta rice sauce salad noodles butter yoghurt cookies beer wine".split()
GAMES = "chess football tennis poker golf cards the piano the guitar the violin".replace("the ", "the_").split()
JOBS = "pilot doctor baker teacher lawyer plumber singer painter nurse judge farmer sailor".split()
THINGS_OF_A_DAY = ["the weather", "the price of {f}", "the price of a {o}", "the color of the {o}", "my {o}", "my hair", "the time in {c}",
                   "the name of my {p}", "my life", "the size of the {o}", "the alarm clock", "the temperature of the oven", "the heating",
                   "the ring tone of my phone", "the tyres of my car", "the capital of {c}", "my address", "the locks of my door",
                   "the strings of a guitar", "the battery of my {o}", "the tides", "the price of gold"]

WHATS_OF_A_DAY = ["{t}", "{t}", "a {o}", "{xx}", "the {role} of {c}", "{pl}", "the {o} of {n}", "my {o}", "a {a} {o}", "{f}", "{l}"]
WHENS_OF_A_DAY = ["it rains", "it rains in {c}", "my {p} dies", "my {o} breaks", "I lose my {o}", "I eat too many {f}", "{n} calls",
                  "the {o} is {a}", "a {o} falls down", "I miss my train to {c}", "I drop a {o}", "{n} leaves", "the sun sets", "I get ill",
                  "the price of {f} rises", "I mix {f} and {food}", "war breaks out", "I forget my {o}", "a {o} meets a {o2}", "I press a {o}",
                  "I marry {n}", "my {p} is late", "the moon falls down", "I give my {p} a {o}"]
THATS_OF_A_DAY = ["{c} is the capital", "{f} are healthy", "a {o} can {k}", "{n} likes {f}", "{n} {s} is in {c}", "the {o} is {a}",
                  "{t} is dangerous", "{pl} is better than {pl2}", "my {p} loves me", "the earth is flat", "it will rain in {c}", "{l} is hard",
                  "a {o} is larger than a {o2}", "{xx} is free", "{xx} is written in {pl}", "{n} {deed} the {o}"]

OUTSIDE = {
    "deeds": [],  # everyday_deed() in the frames of the manual
    "things": [],
    "whats": [],
    "whens": [],
    "thats": [],
    "others": ["Does {xx} support {x}?", "Does {pl} support {x}?", "How do I install {xx}?", "Which version has {xx}?", "Is {xx} better than {pl}?",
               "What does my {o} do?", "What is my {o} for?", "What does {n} do?", "What is a {o} for?", "What happens if I eat {f}?",
               "What happens if I drop my {o}?", "Which {o} gives {f}?", "Which {o} do I need?", "What is the default {o}?",
               "Which {o} sets the {o2}?", "What does the {o} cost?", "Tell me about {c}.", "Explain {xx}.", "Describe a {o}.", "And {c}?",
               "What about {n}?", "And the {o}?", "What about the {o}?", "How about a {o}?", "What about some {f}?", "Where do I see {c}?",
               "Where do I find {f}?", "Where is my {o}?", "How do I stop {n}?", "Why is my {o} so slow?", "Is my {o} broken?",
               "How long is a {o}?", "How many {f} are in a {o}?", "How fast is {n}?", "Which {o} is the best?", "Can a {o} {k}?",
               "Does a {o} have {f}?"],
    "social": ["Do you like it here?", "Do you like {n}?", "Do you like my {o}?", "Do you like {c}?", "How was your weekend?",
               "How was your trip to {c}?", "How is {n}?", "How is {n} doing?", "How is your {p}?", "How is my {p} today?", "How are the {f}?",
               "How is the weather?", "How was {c}?", "How are {n} and {n3}?", "How is life in {c}?", "Are you hungry?", "Are you married?",
               "Are you so {a}?", "Are you tired?", "Are you rich?", "Are you in {c}?", "Are you from {c}?", "Are you my {p}?",
               "Did you sleep well?", "Did you see the {o}?", "What did you eat?", "Where do you live?", "How old are you?", "Do you love me?",
               "Do you love {n}?", "Will you marry me?", "Can you see me?", "Can you hear me?", "Can you {k}?", "What are you wearing?",
               "Do you have a {o}?", "Do you have a {p}?", "Have you been to {c}?", "Thank {n} for me.", "Say goodbye to {n}.", "Say hello to {n}.",
               "Greet {n} from me.", "How do you like {c}?", "Welcome to {c}!", "Would you like some {f}?", "Do you want to {k}?",
               "Do you want some {food}?", "What is your favorite {o}?", "What is your favorite color?", "Who is your best friend?",
               "Who is your {p}?", "Shall we {k}?", "Tell me a secret.", "Sing me a song.", "Make me laugh.", "I love you.", "I am sad.",
               "I am bored.", "I am hungry.", "I had a bad day.", "It is raining in {c}.", "My {o} is broken.", "I lost my {o}.", "I like {f}.",
               "You are a {o}.", "I bought a {a} {o}.", "{n} is my {p}.", "Do you believe in {t}?", "Do you dream?", "What do you dream of?",
               "Why are you so {a}?", "Good {o}!", "Nice {o}!"],
    "writing": ["Write a {w} about {t}.", "Can you write me a {w} about {t}?", "Compose a {w} on {t}.", "Tell me a {w} about {t}.",
                "Write me a {w}.", "Tell me a {w}.", "I need a {w} for my {p}.", "A {w} about the {o}, please.",
                "Make up a {w} with a {o} and a {o2}.", "Continue this {w}: the {a} {o} met {n}.", "Recommend a {w} about {t}.",
                "Write a {a} {w} for {n}.", "Rhyme with {x}.", "Give me a title for a {w} about {t}."],
    "facts": ["What is the {role} of {c}?", "Tell me the {role} of {c}.", "Do you know the {role} of {c}?", "Who {deed} the {o}?",
              "When was {c} founded?", "Who was {n} {s}?", "What did {n} {s} do?", "Who is {n} {s}?", "Where is {c}?", "Is {c} a nice city?",
              "Tell me something about {c}.", "What happened in {c} yesterday?", "Which team won in {c}?", "What is the news from {c}?",
              "How old is {n} {s}?", "How tall is {n} {s}?", "How far is the moon?", "What year is it?", "What time is it?", "What day is today?",
              "At which temperature does water boil?", "How many people live in {c}?", "Which language do people speak in {c}?",
              "When did {n} {s} die?", "In which year was the {o} {deed}?", "Why do {f} grow?", "How many legs does a {o} have?",
              "What color is a {o}?", "How fast is a {o}?", "What do {o}s eat?", "Is a {o} larger than a {o2}?", "What is {xx}?", "Who is {xx}?",
              "Where is {xx} made?", "Have you heard of {xx}?", "What does the word {x} mean?", "Define {x}.", "Why is the sky blue?",
              "How does a {o} work?", "What is the meaning of life?", "What is a {o}?", "What are {f} good for?"],
    "explain": ["Explain {t} to me.", "Tell me about {t}.", "Why is {t} important?", "Summarize the history of {t}.", "What is {t}?",
                "Teach me {t}.", "Help me with {t}.", "What do you think about {t}?", "What is your opinion on {t}?", "Do you like {t}?",
                "Do you like {f}?", "Compare {t} and {t2}.", "Which is better, {t} or {t2}?", "What is the difference between {t} and {t2}?",
                "Is {t} dangerous?", "Who started {t}?", "Where can I learn {t}?", "Give me three ideas about {t}."],
    "advice": ["I feel ill. What should I take?", "Should I buy a {o}?", "What should I eat today?", "How do I learn {l}?", "How do I grow {f}?",
               "How do I cook {f}?", "How do I repair a {o}?", "Find a name for my {o}.", "Make a plan for my trip to {c}.",
               "Give me advice about {t}.", "How can I {k}?", "Teach me to {k}.", "What should I give my {p} as a present?",
               "My {p} is angry with me. What shall I do?", "Help me with my taxes.", "Find me a hotel in {c}.", "What is the best {o}?",
               "Where can I buy a {o}?", "Is it healthy to eat {f}?", "What shall I wear today?", "Can you {act} a {o} for me?",
               "Please {act} my {o}.", "{Act} a {a} {o}.", "I want you to {act} something.", "How do I {act} a {o}?", "Draw a picture of a {o}."],
    "memory": ["What did I say yesterday?", "What did I ask you last time?", "Do you remember me?", "Do you remember our last talk?",
               "What is my name?", "How old am I?", "Where do I live?", "When is my birthday?", "What is my {p} called?",
               "What did I tell you about {t}?", "Do you know my {p}?", "Remember me tomorrow.", "Remind me of {n} next week.",
               "What do you remember about {n}?", "Where did I put my {o}?", "What is my favorite color?", "Do you remember {n} {s}?",
               "What did {n} tell you?", "What is my password?", "What were we talking about last week?"],
    "code": ["Write a program in {pl} that {cd}.", "Write {pl} code that {cd}.", "Write a {pl} function that {cd}.", "Fix my {pl} program.",
             "What does this code do: {code}", "Convert this to {pl}: {code}", "Why does {code} not work?", "Explain this code: {code}",
             "How do I write a loop in {pl}?", "Which is better, {pl} or {pl2}?", "Find the bug: {code}", "Write code for a {o}.",
             "Write a regular expression for {x}.", "Teach me {pl}.", "Install {pl} for me.", "What is {pl}?"],
}
# What a function of tools.py might do: refused where no function is given.
TOOL_LIKE = ["Translate {x} to {l}.", "How do you say {x} in {l}?", "What is the {l} word for {x}?", "Translate this to {l}: the {o} is {a}",
             "What is the weather in {c}?", "Will it rain in {c} tomorrow?", "Weather in {c}?", "Weather for {c}, please.", "Is it warm in {c}?",
             "How is it outside in {c}?", "How cold is it in {c}?", "Weather in {c}", "What will the weather be like in {c}?",
             "How much does a {o} cost?", "Send a message to {n}.", "Set a timer for {n2} minutes.", "Play some music by {n}.",
             "What is the phone number of {n}?", "How far is it from {c} to {c2}?", "Wake me in {n2} minutes.", "Book a table for {n2}.",
             "Turn off the light.", "What is in the file {x}.txt?", "Convert {n2} miles to km.", "Read my mail.", "Call {n}.",
             "Put this in my calendar.", "Search the web for {x}.", "Open the page {x}.com.", "Order a {o} for me."]


# No flag, option or server in them: with those it is a question about Tessera, to which unknown.py has the answer.
PLAIN_THING = [frame for frame in THING if not any(word in frame.lower() for word in ("flag", "option", "setting", "parameter", "switch", "server",
                                                                                      "tessera", "configur", "pass for", "another value"))]
DAILY = {"things": (THINGS_OF_A_DAY, PLAIN_THING), "whats": (WHATS_OF_A_DAY, [frame for frame in WHAT if "Tessera" not in frame]),
         "whens": (WHENS_OF_A_DAY, [frame for frame in WHEN if "Tessera" not in frame and "server" not in frame]), "thats": (THATS_OF_A_DAY, THAT)}
CHATTY = ("deeds", "things", "whats", "whens", "thats", "others", "social")  # new here; functions might serve some of them


def filled(rng: random.Random, template: str) -> str:
    """The template with words."""
    c, act = rng.choice, rng.choice(ACTS)
    words = {"w": c(WRITINGS), "t": c(TOPICS), "t2": c(TOPICS), "x": any_word(rng), "y": any_word(rng), "xx": fresh(rng), "l": c(LANGUAGES),
             "o": c(NOUNS + THINGS) if rng.random() < 0.85 else new_word(rng), "o2": c(NOUNS), "c": city(rng), "c2": city(rng),
             "n": person(rng), "s": surname(rng), "f": c(FRUITS), "p": c(PEOPLE), "a": c(ADJECTIVES), "k": c(SKILLS), "role": c(ROLES),
             "deed": c(DEEDS), "act": act, "Act": act.capitalize(), "pl": c(PROGRAMS), "pl2": c(PROGRAMS), "n2": rng.randint(2, 90)}
    words.update(food=c(FOODS), game=c(GAMES).replace("_", " "), job=c(JOBS), n3=person(rng))
    words["code"] = c(SNIPPETS).format(x=any_word(rng), y=any_word(rng), n=rng.randint(1, 99))
    words["cd"] = c(CODE_DEEDS).format(**words)
    return template.format(**words)


def everyday_deed(rng: random.Random) -> str:
    return filled(rng, rng.choice(DEEDS_OF_A_DAY))


def outside(rng: random.Random, tool_like: bool = True) -> str:
    """A request outside of the tasks; without `tool_like` none that a function could serve."""
    if tool_like and rng.random() < 0.2:
        return filled(rng, rng.choice(TOOL_LIKE))
    kinds = list(OUTSIDE) + ["deeds", "social"] if tool_like else [kind for kind in OUTSIDE if kind not in CHATTY]
    kind = rng.choice(kinds)
    if kind == "deeds":
        return ask(rng, DO, everyday_deed(rng))
    if kind in DAILY:
        phrases, frames = DAILY[kind]
        return ask(rng, frames, filled(rng, rng.choice(phrases)))
    return filled(rng, rng.choice(OUTSIDE[kind]))
