"""Greetings, and questions about the model itself."""

import random
from pathlib import Path

from .asked import phrased
from .chat import Conversation, Turn
from .frames import ask
from .topics import read_topics
from .words import NOUNS, THINGS, Asked, person, surname

WHO = "I am Tessera Mini, a small language model that comes with Tessera."
SELF = read_topics(Path(__file__).parent / "self.txt")
OTHER_NAMES = """ChatGPT GPT-4 GPT Claude Gemini Llama Mistral DeepSeek Copilot Siri Alexa Cortana Bard Grok Phi Falcon Bixby HAL Watson Eliza
Mixtral Bloom Kimi Jarvis""".split()
BEINGS = ["human", "person", "man", "woman", "human being", "real person", "cat", "dog", "child", "god", "ghost", "doctor", "teacher",
          "search engine", "calculator", "database", "web site", "browser", "spy", "student", "plant", "fish", "bird", "king", "queen", "wizard",
          "poet", "real human", "boy", "girl", "living being", "pilot", "painter", "large model", "server administrator", "colleague",
          "person of flesh and blood"]
IS_IT = ["Are you {}?", "Are you {}?", "Are you {}?", "Is your name {}?", "Is this {}?", "Am I talking to {}?", "Am I speaking with {}?",
         "Do I speak with {}?", "You are {}, right?", "Are you perhaps {}?", "Are you really {}?", "Do they call you {}?", "Is it {}?",
         "Is that you, {}?", "So you are {}?", "Aren't you {}?"]
IS_A = ["Are you a {}?", "Are you a {}?", "Are you really a {}?", "Am I talking to a {}?", "Am I chatting with a {}?", "You are a {}, right?",
        "So you are a {}?", "Is there a {} behind this?", "Is this a {}?", "Are you not a {}?", "Do I speak with a {}?", "Maybe you are a {}?"]
# Around what a person wants to know of the model (self.txt).
CLAUSES = ["Tell me {}.", "Tell me {}.", "Please tell me {}.", "Say {}.", "Explain {}.", "I want to know {}.", "I would like to know {}.",
           "I wonder {}.", "I am curious {}.", "Do you know {}?", "Can you tell me {}?", "Can you say {}?", "Could you tell me {}?",
           "Could you explain {}?", "Will you tell me {}?", "Would you mind telling me {}?", "Are you able to tell me {}?", "Let me know {}.",
           "I do not know {}.", "I have no idea {}.", "Nobody told me {}.", "I need to know {}.", "It would be nice to know {}.",
           "I should like to hear {}.", "Show me {}.", "Remind me {}.", "May I ask {}?", "Can I ask {}?", "May I know {}?",
           "Just tell me {}.", "Describe {}.", "So {}?", "{}?", "{}", "Tell us {}.", "In one sentence, tell me {}.", "First tell me {}.",
           "Before we begin, tell me {}.", "Everybody asks {}.", "What I want to know: {}.", "I forgot {}.", "Write down {}.",
           "Tell me again {}.", "I still do not know {}."]
THINGS_OF_IT = ["What is {}?", "What is {}?", "What's {}?", "What are {}?", "Tell me {}.", "Tell me about {}.", "Tell me something about {}.",
                "Describe {}.", "Explain {}.", "I want to know {}.", "I want to know more about {}.", "What about {}?", "How about {}?",
                "Say something about {}.", "What can you say about {}?", "What can you tell me about {}?", "Can you tell me {}?",
                "Could you describe {}?", "Do you know {}?", "Give me {}.", "Name {}.", "Show me {}.", "{}?", "{}", "{}, please.", "And {}?",
                "May I know {}?", "What would you say is {}?", "A word about {}?", "I am interested in {}.", "Talk about {}.",
                "Details of {}?", "More about {}, please.", "I would like to hear about {}.", "State {}."]
CLAIMS = ["Is it true that {}?", "I heard that {}.", "I think {}.", "Someone said that {}.", "{}, right?", "{}, is that so?", "{}?", "So {}?",
          "Do you mean that {}?", "Is it so that {}?", "I believe {}.", "Can it be that {}?", "Would you say that {}?", "Tell me whether {}.",
          "Do you know whether {}?", "I wonder whether {}.", "{}, correct?", "{}, yes or no?", "I read that {}.", "My friend says that {}.",
          "I suppose {}.", "It seems that {}.", "Is it correct that {}?", "Am I right that {}?", "I want to know whether {}."]
OF_ITSELF = {"clause": CLAUSES, "thing": THINGS_OF_IT, "that": CLAIMS, "ask": ["{}"]}
STATES = "alive conscious sentient human real awake male female self-aware".split()
ITSELF = ["Tessera Mini", "Tessera", "Mini"]


def is_it(rng: random.Random) -> tuple:
    """"Are you ...?": asked with its own name, those of others, and what it is not."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(IS_IT).format(rng.choice(ITSELF)), "Yes. " + WHO
    if kind < 0.65:
        name = rng.choice(OTHER_NAMES) if rng.random() < 0.5 else person(rng) if rng.random() < 0.7 else f"{person(rng)} {surname(rng)}"
        return rng.choice(IS_IT).format(name), "No. " + WHO
    if kind < 0.7:
        return rng.choice(("Are you {}?", "Are you really {}?", "You are {}, right?", "Do you think you are {}?", "Is it true that you are {}?",
                           "Are you {} or not?", "So you are {}?")).format(rng.choice(STATES)), "No. " + WHO
    being = rng.choice(BEINGS) if rng.random() < 0.6 else rng.choice(NOUNS + THINGS)
    text = rng.choice(IS_A).format(being)
    for vowel in "aeio":
        text = text.replace(f" a {vowel}", f" an {vowel}")
    return text, "No. " + WHO


def about_itself(rng: random.Random) -> tuple:
    if rng.random() < 0.25:
        asked, answer = is_it(rng)
    else:
        topic = rng.choice(SELF)
        kinds = [kind for kind in OF_ITSELF if getattr(topic, kind)]
        kind = rng.choices(kinds, [len(getattr(topic, kind)) ** 0.5 for kind in kinds])[0]
        asked, answer = ask(rng, OF_ITSELF[kind], rng.choice(getattr(topic, kind))), topic.head
    return phrased(rng, asked), answer


# Greetings are put together from parts, so that a wording that is held out is one of many of the same parts.
HELLO = """Hello;Hi;Hey;Hallo;Howdy;Greetings;Good day;Good afternoon;Welcome;Hi hi;Hey hello;Hello hello;Oh hello;Oh hi;Hiya;Hi again;
Hello again;Yo;Heya;Ahoy;Hullo;Helo;Hey hey;Well hello;Ah, hello;
Salut;Ciao;Hola;Good day to you;Greetings to you;Hi and hello""".replace("\n", "").split(";")
WHOM = ["", "", "", " there", " Tessera", " Mini", " Tessera Mini", " my friend", " you", " all", " everyone", " dear Tessera",
        " little model", " assistant", " again", " computer"]
MET = ["", "", "", "", ", nice to meet you", ", it is me", ", anyone there", ", are you there", ", good to see you", ", I am back",
       ", I am new here", ", pleased to meet you", ", here I am", ", let us start"]
FEEL = ["how are you", "how are you doing", "how is it going", "how are you today", "how do you do", "how do you feel", "are you well",
        "is all well", "what is up", "how are things", "how are things today", "are you fine", "how is your day", "how are you feeling", "sup",
        "what is new", "are you OK", "are you doing well", "how are you getting on", "all good", "how is everything", "everything OK",
        "how have you been", "are you all right", "is everything fine", "how goes it", "how do you feel today", "did you have a good day",
        "I hope you are well", "what are you up to", "how is your day going", "you good", "how is it with you", "how are you these days",
        "how are you now"]
THANKS = ["thanks", "thank you", "thanks a lot", "many thanks", "thank you very much", "thanks for your help", "cheers", "thank you so much",
          "thanks again", "thank you for the answer", "a big thank you", "thx", "ty", "much obliged", "thanks for that", "thank you for your help",
          "thanks for your time", "I thank you", "thank you kindly", "thanks, that was all I needed", "thanks, it works", "thanks, it works now",
          "thanks for explaining", "thank you for explaining", "thanks for the quick answer", "that was helpful, thanks", "I am grateful",
          "you helped me a lot"]
PRAISE = ["", "", "", "great, ", "well done, ", "perfect, ", "that helped, ", "good, ", "nice, ", "OK, ", "super, ", "that is great, ", "right, ",
          "wonderful, "]
BYE = ["bye", "goodbye", "see you", "bye bye", "see you later", "good night", "until next time", "I have to go", "see you tomorrow",
       "I am leaving", "so long", "take care", "farewell", "cya", "see you soon", "talk to you later", "until tomorrow", "I must go now",
       "I am off", "have a nice day", "have a good evening", "till later", "that is all for today", "I am going home", "time to go",
       "ciao for now", "catch you later", "I will be back tomorrow", "let us stop here", "sleep well"]
DONE = ["", "", "", "thanks and ", "that is all, ", "OK, ", "thank you, ", "I am done, ", "well, ", "good, ", "all done, ", "right, ", "and now "]
ENDINGS = ["", "", "", "!", "!", ".", "!!", "?", " :)", "...", "!!!", " !"]


def greeting(rng: random.Random) -> tuple:
    """What a person says, and the answer; its core is what decides the answer."""
    c, kind = rng.choice, rng.random()
    if kind < 0.34:
        return c(HELLO) + c(WHOM) + c(MET), "Hello! I am Tessera Mini. How can I help you?"
    if kind < 0.5:
        day = c(("morning", "evening"))
        head = c((f"good {day}", f"good {day}", day, f"hello and good {day}", f"a good {day}", f"hi, good {day}", f"a very good {day}",
                  f"good {day} to you",
                  f"{day} to you", f"a happy {day}", f"a fine {day}", f"I wish you a good {day}"))
        return head + c(WHOM) + c(MET), f"Good {day}! How can I help you?"
    if kind < 0.7:
        head = "" if rng.random() < 0.4 else c(HELLO) + c(WHOM) + ", "
        core = c(FEEL) + ("" if head else c(WHOM))
        return Asked(head + core, core), "I am running well. How can I help you?"
    if kind < 0.86:
        core = c(THANKS) + c(WHOM)
        return Asked(c(PRAISE) + core, core), "You are welcome!"
    core = c(BYE) + c(WHOM)
    return Asked(c(DONE) + core, core), "Goodbye!"


def ended(rng: random.Random, asked: str) -> Asked:
    """With a mark at the end, and in the case that people type."""
    text = asked[0].upper() + asked[1:] + rng.choice(ENDINGS)
    case = rng.random()
    return Asked(text.lower() if case < 0.3 else text.upper() if case < 0.34 else text, getattr(asked, "core", asked))


def greeting_turns(rng: random.Random) -> list:
    asked, answer = rng.user(lambda: greeting(rng))
    return [Turn("user", ended(rng, asked)), Turn("assistant", answer, "A greeting.")]


def identity(rng: random.Random) -> Conversation:
    """About the model, or a greeting; sometimes a greeting first and then a question."""
    thinking = rng.random() < 0.5
    if rng.random() < 0.4:
        return Conversation("greeting", greeting_turns(rng), thinking=thinking)
    asked, answer = rng.user(lambda: about_itself(rng))
    turns = greeting_turns(rng) if rng.random() < 0.2 else []
    turns += [Turn("user", asked), Turn("assistant", answer, "A question about me.")]
    return Conversation("identity", turns, thinking=thinking)
