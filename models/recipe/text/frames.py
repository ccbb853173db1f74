"""The ways to ask for something, into which known, unknown and foreign purposes are put alike.

A purpose is a verb phrase ("change the port") or a thing ("the port"). The same frames stand around what Tessera
can do, what no flag of it does (unknown.py) and what is not its business (outside.py), so that a frame decides nothing.
"""

import random

DO = ["How do I {}?", "How do I {}?", "How do I {}?", "How can I {}?", "How can I {}?", "How would I {}?", "How could I {}?", "How should I {}?",
      "How to {}?", "How does one {}?", "How do you {}?", "How do we {}?", "How must I {}?", "How might one {}?", "How am I supposed to {}?",
      "I want to {}.", "I would like to {}.", "I need to {}.", "I have to {}.", "I wish to {}.", "I am trying to {}.", "I try to {}, but how?",
      "I want to {}. What do I do?", "I want to {}, how do I do that?", "I need to {}. How?", "My aim is to {}.", "Tell me how to {}.",
      "Show me how to {}.", "Explain how to {}.", "Teach me how to {}.", "Tell me how I can {}.", "Can you tell me how to {}?",
      "Could you explain how I {}?", "Do you know how to {}?", "Do you know how I can {}?", "I do not know how to {}.", "I wonder how to {}.",
      "I cannot find out how to {}.", "I have no idea how to {}.", "What do I do to {}?", "What must I do to {}?", "What do I need to {}?",
      "What should I do to {}?", "What does it take to {}?", "What if I want to {}?", "What is the way to {}?", "What is the best way to {}?",
      "What is the easiest way to {}?", "What is needed to {}?", "What helps me to {}?", "Can I {}?", "Could I {}?", "May I {}?", "Can one {}?",
      "Can you {}?", "Can you help me {}?", "Am I able to {}?", "Help me {}.", "Help me to {}.", "Is it possible to {}?", "Is there a way to {}?",
      "Is there any way to {}?", "Is there something to {}?", "Any way to {}?", "Any idea how to {}?", "Would it be possible to {}?",
      "Suppose I want to {}.", "Say I want to {}. What then?", "Where do I {}?", "Where can I {}?", "We want to {}.", "Someone asked me to {}.",
      "Give me a hint how to {}.", "Please {}.", "The way to {}?", "To {}, what do I do?", "Let us {}.", "{}", "{}?", "{}, how?", "{}, please.",
      "{}. How?", "Now {}.", "Trying to {}.", "Want to {}.",
      "How can one {}?", "I would love to {}.", "Any chance to {}?", "What would it take to {}?", "Does it let me {}?", "Does it allow me to {}?",
      "Can it {}?", "How do I make it {}?", "Is it able to {}?", "Do I have to do something to {}?", "How do people {}?",
      "What are the steps to {}?", "Which steps do I take to {}?", "I need a way to {}.", "Is it hard to {}?", "Is it easy to {}?",
      "How exactly do I {}?", "What is the trick to {}?", "What is the right way to {}?", "Could you help me to {}?", "My boss wants me to {}.",
      "I have to {} today.", "I must {}.", "How can we {}?", "What should one do to {}?", "Am I allowed to {}?", "Is one able to {}?",
      "Where does one {}?", "I plan to {}.", "I try to {}.", "It would help me to {}.", "How might I {}?", "Why can I not {}?",
      "I am unable to {}.", "How come I cannot {}?", "Is there some way to {}?", "Is it at all possible to {}?", "What would I do to {}?",
      "How hard is it to {}?", "I am looking for a way to {}.", "Does anyone know how to {}?", "I was told to {}.", "I should {}, but how?",
      "I failed to {}. How is it done?", "Is it OK to {}?", "I am struggling to {}.", "If I want to {}, what do I do?", "My goal is to {}.",
      "Need to {}.", "A way to {}?", "How can a beginner {}?", "How on earth do I {}?", "What do you do to {}?", "Is there a trick to {}?",
      "What do I have to do to {}?", "I tried to {} and could not.", "How would you {}?", "Can somebody {}?", "How do I go about it: {}?"]
# Only about programs: a flag, an option or Tessera is named.
DO_FLAG = ["Which flag do I need to {}?", "Which flag should I use to {}?", "Which flag lets me {}?", "Which flag is there to {}?",
           "Which flag do I set to {}?", "Which option do I need to {}?", "Which option lets me {}?", "Which option do I use to {}?",
           "What option do I use to {}?", "What flag do I use to {}?", "Is there an option to {}?", "Is there a flag to {}?",
           "Is there a setting to {}?", "What is the flag to {}?", "What is the option to {}?", "What do I pass to tessera to {}?",
           "Does Tessera let me {}?", "Does Tessera have an option to {}?", "Can I {} with Tessera?", "Can I tell Tessera to {}?",
           "How do I {} with Tessera?", "How do I {} in Tessera?", "How do I tell the server to {}?", "Does tessera serve let me {}?",
           "What do I add to the command line to {}?", "Name the flag to {}.", "Tell me the option to {}.", "Give me the flag to {}.",
           "I look for a flag to {}.", "I look for an option to {}.", "I am looking for the switch to {}.", "Which parameter do I change to {}?",
           "Has Tessera a flag to {}?", "Flag to {}?", "Option to {}?",
           "With which flag do I {}?", "With which option can I {}?", "What flag can {}?", "What argument do I pass to {}?",
           "Which command line option can {}?", "On the command line, how do I {} with a flag?", "What parameter lets me {}?",
           "tessera serve: how do I {}?", "How do I start the server to {}?", "Which setting do I need to {}?", "Can the server {}?",
           "Do you have a flag to {}?",
           "What switch do I need to {}?", "Do I need a flag to {}?"]
DO_COMMAND = ["Which command do I use to {}?", "Which command do I need to {}?", "What is the command to {}?", "What command do I type to {}?",
              "Is there a command to {}?", "Which command lets me {}?", "Command to {}?", "Does Tessera let me {}?", "Can I {} with Tessera?",
              "How do I {} with Tessera?", "How does Tessera {}?", "Can Tessera {}?", "Tell me the command to {}.", "What do I run to {}?",
              "What do I type to {}?", "{} with Tessera?", "{} in the shell",
              "Which subcommand do I use to {}?", "What subcommand lets me {}?", "Which tessera command can {}?", "tessera: how do I {}?",
              "What command can {}?", "With which command do I {}?", "On the command line, how do I {}?", "How do I {} on the command line?",
              "How do I {} in the terminal?", "Give me the command to {}."]
THING = ["Which flag sets {}?", "Which flag changes {}?", "Which flag controls {}?", "Which flag is for {}?", "Which option sets {}?",
         "Which option controls {}?", "Which option is for {}?", "Which option changes {}?", "Which setting is for {}?", "Which parameter sets {}?",
         "Which switch is for {}?", "What sets {}?", "What controls {}?", "What decides {}?", "What is the flag for {}?",
         "What is the option for {}?", "What flag sets {}?", "What option sets {}?", "Is there a flag for {}?", "Is there an option for {}?",
         "Is there a setting for {}?", "How do I set {}?", "How do I set {}?", "How do I change {}?", "How can I set {}?", "How can I change {}?",
         "How can I configure {}?", "How do I configure {}?", "How do I adjust {}?", "How do I choose {}?", "How is {} set?", "How is {} chosen?",
         "Where do I set {}?", "Where can I configure {}?", "Where is {} set?", "Can I set {}?", "Can I change {}?", "Can I choose {}?",
         "Can {} be changed?", "Is {} configurable?", "Is it possible to change {}?", "Tell me the flag for {}.", "Name the flag for {}.",
         "Name the option for {}.", "I want to change {}.", "I want to set {}.", "I need to change {}.", "I would like to set {} myself.",
         "I need another value for {}.", "Flag for {}?", "Option for {}?", "Does Tessera have a flag for {}?",
         "Does Tessera have an option for {}?", "What do I pass for {}?", "How do I tell the server {}?", "Set {}, how?", "Change {}, please.",
         "{}?", "{}", "{}, how?", "{} setting?", "{} flag?", "Which flag, {}?", "Set {}.", "What about a flag for {}?", "I do not like {}.",
         "Another value for {}, please.", "{}: how do I change it?", "{}: which flag is it?", "About {}: how is it set?",
         "{} is wrong for me. How do I change it?", "{} should be different.", "I do not want the default of {}.", "{} does not suit me.",
         "Where does {} come from?", "{} must be changed. How?", "How do I get another value for {}?", "Let me choose {}.",
         "I want to decide about {} myself.", "Which of the flags is about {}?", "I search the flag about {}.", "How would one specify {}?",
         "How can {} be set?", "How do I override {}?",
         "How do I reduce {}?", "How do I increase {}?", "How do I raise {}?", "How do I lower {}?", "How do I control {}?",
         "How do I specify {}?", "Can I specify {}?", "Can I control {}?", "Can I adjust {}?", "How do I pick {}?", "Is {} adjustable?",
         "Is {} fixed?", "Can {} be set?", "Can {} be adjusted?", "How do I tune {}?", "How do I define {}?", "I want to control {}.",
         "I want to choose {}.", "May I choose {}?", "Who decides {}?", "How do I tell it {}?", "How do I give it {}?", "Where do I change {}?",
         "Where do I enter {}?", "Where do I give {}?", "What determines {}?", "What do I do about {}?", "How can {} be changed?",
         "How would I change {}?", "Must I set {}?", "Do I have to set {}?", "Do I need to set {}?", "Can I raise {}?", "Can I lower {}?",
         "I have to set {}.", "Could I change {}?", "Please change {}.", "Set {} for me.", "What can I do about {}?", "How does one set {}?",
         "Is there a knob for {}?", "Which knob is for {}?", "How come I cannot change {}?", "Can I have a say in {}?", "Where do I put {}?",
         "Must I live with {}?", "What is responsible for {}?", "Is there a way to change {}?", "Is there a way to set {}?",
         "Is there a limit to {}?", "I want to play with {}.", "How do I influence {}?", "How much can I change {}?"]
ENDPOINT_DO = ["Which endpoint do I use to {}?", "Which endpoint do I call to {}?", "Which endpoint lets me {}?", "Which path do I call to {}?",
               "Which URL do I need to {}?", "How do I {} over HTTP?", "How can I {} over HTTP?", "How can a client {}?", "How does a client {}?",
               "Is there an endpoint to {}?", "What is the endpoint to {}?", "Which request do I send to {}?", "Where do I send a request to {}?",
               "What do I call to {}?", "Can I {} over HTTP?", "Endpoint to {}?", "Name the endpoint to {}.", "I want to {} over HTTP.",
               "My program has to {}. Which endpoint is that?", "How do I {} with curl?",
               "What URL do I call to {}?", "Which HTTP request do I use to {}?", "Which API call lets me {}?", "How do I {} with the API?",
               "How do I {} through the API?", "Does the API let me {}?", "What is the API call to {}?", "What path is there to {}?",
               "Over HTTP, how do I {}?", "How can my script {} over HTTP?", "How do I {} from Python?"]
ENDPOINT_THING = ["Which endpoint gives {}?", "Which endpoint gives {}?", "Which endpoint shows {}?", "Which endpoint has {}?",
                  "Which endpoint is for {}?", "Which path gives {}?", "Which path is for {}?", "Which URL shows {}?", "Which URL is for {}?",
                  "Where do I see {}?", "Where do I get {}?", "Where do I find {}?", "Where can I see {}?", "Where can I get {} over HTTP?",
                  "Where can I look at {}?", "How do I get {} over HTTP?", "How do I see {} with curl?", "What is the URL for {}?",
                  "What is the endpoint for {}?", "What is the path of {}?", "What do I call for {}?", "Is there an endpoint for {}?",
                  "Has the server an endpoint for {}?", "Under which URL is {}?", "Under which path do I find {}?", "Endpoint for {}?",
                  "Path for {}?", "URL for {}?", "Name the endpoint for {}.", "Show me the endpoint for {}.", "Does the server offer {}?",
                  "At which address do I find {}?", "{} over HTTP?", "{}, which URL?", "{}, which endpoint?", "curl {}, how?", "URL of {}?",
                  "What URL gives {}?", "Which API call returns {}?", "Does the API give {}?", "How does a client get {}?",
                  "Which request returns {}?", "Does the server expose {}?", "Where does the server show {}?", "Where does the API give {}?",
                  "How can I query {}?", "Which address gives {}?", "What returns {}?", "Can I get {} over HTTP?"]
SUPPORT = ["Does Tessera support {}?", "Does Tessera support {}?", "Does Tessera support {}?", "Can Tessera do {}?", "Can Tessera use {}?",
           "Does Tessera have {}?", "Does Tessera know {}?", "Does Tessera do {}?", "Is {} supported?", "Is {} possible with Tessera?",
           "Is {} supported by Tessera?", "Is there support for {}?", "Does the server support {}?", "Does tessera serve support {}?",
           "Does Tessera work with {}?", "Is there {} in Tessera?", "How about {}?", "Tessera and {}?", "Do you support {}?", "Can I use {}?",
           "Can I use {} with Tessera?", "How do I use {}?", "How do I turn {} on?", "How do I enable {}?", "Will Tessera support {}?",
           "Is {} available?", "Is {} implemented?", "What about support for {}?", "{}?", "{}", "{} support?", "{} possible?", "{} in Tessera?",
           "{} with Tessera?", "{}, please.", "Any {}?", "Got {}?",
           "Does it support {}?", "Does it have {}?", "Does it do {}?", "Can it do {}?", "Can it use {}?", "Can it handle {}?",
           "Does it handle {}?", "Does it work with {}?", "Will it work with {}?", "Is it compatible with {}?", "Does this work with {}?",
           "Is there any {}?", "Are there {}?", "Are {} supported?", "Do {} work?", "Does {} work?", "What is the status of {}?",
           "When will {} be supported?", "When will {} come?", "I need {}.", "I want {}.", "I want to use {}.", "I would like to use {}.",
           "Can I have {}?", "Do you have {}?", "Do you offer {}?", "How well does it support {}?", "Is {} there?", "Is {} planned?",
           "Are there plans for {}?", "Does the project support {}?", "Can the server do {}?", "Can the server use {}?", "What about {}?",
           "Is {} an option?", "Could I use {}?", "May I use {}?", "Why is there no {}?", "Can this program do {}?", "Does this server have {}?",
           "Any chance of {}?", "Will {} work?", "Is {} OK?", "Does it take {}?", "Can it cope with {}?", "Is it fine with {}?",
           "How come there is no {}?", "Can it work with {}?", "Are {} OK?", "Would {} work?", "I hope for {}."]
WHAT = ["What is {}?", "What is {}?", "What are {}?", "What does {} mean?", "Explain {}.", "Explain {} to me.", "Tell me about {}.",
        "Tell me what {} is.", "Describe {}.", "Define {}.", "What is meant by {}?", "What do you mean by {}?", "What is the meaning of {}?",
        "What do I need {} for?", "What is {} good for?", "What is {} for?", "What is the idea of {}?", "What is {} in Tessera?",
        "Do you know what {} is?", "Can you explain {}?", "Could you tell me what {} is?", "Why is there {}?", "I do not know what {} is.",
        "I do not understand {}.", "I never heard of {}.", "I read about {}. What is it?", "Give me a definition of {}.", "In short, what is {}?",
        "{}, what is that?", "{}?", "{}", "What about {}?", "Teach me what {} is.", "How does {} work?", "What should I know about {}?",
        "What exactly is {}?", "What's {}?", "Meaning of {}?", "Definition of {}?", "Can you define {}?", "When do I need {}?", "Do I need {}?",
        "What do people mean by {}?", "How would you explain {}?", "Please explain {}.", "I keep hearing of {}. What is it?", "Is {} important?",
        "What is the use of {}?", "What is behind {}?", "What is the point of {}?", "Who needs {}?", "Why {}?", "What kind of thing is {}?",
        "Tell me more about {}.", "I want to understand {}.", "I would like to understand {}.", "Help me understand {}.",
        "What can you tell me about {}?", "In simple words, what is {}?", "{} in one sentence?", "What does {} do?",
        "What do I have to know about {}?", "{}, please explain."]
WHEN = ["What happens when {}?", "What happens when {}?", "What happens if {}?", "What happens if {}?", "What if {}?", "What if {}?",
        "What will happen if {}?", "What would happen if {}?", "What do I do when {}?", "What should I do if {}?", "What can I do if {}?",
        "What does Tessera do when {}?", "What does the server do if {}?", "What happens after {}?", "Is it bad if {}?",
        "Is it a problem when {}?", "What comes when {}?", "Tell me what happens when {}.", "Explain what happens if {}.",
        "Suppose {}. What then?", "Say {}. What happens?", "{}. What now?", "{}. What happens?", "{}, what then?", "And if {}?",
        "What do I see when {}?", "How does Tessera react when {}?", "I fear that {}. What then?", "What does it mean if {}?",
        "What does it do when {}?", "What will it do if {}?", "Does it survive if {}?", "Is anything lost when {}?", "How is it handled when {}?",
        "Do I lose something if {}?", "Will it stop if {}?", "Does it crash when {}?", "Does it go on when {}?", "Can it go on if {}?",
        "Help, {}.", "What is done when {}?", "What must I do when {}?", "How bad is it if {}?", "What is the effect when {}?",
        "Does something break if {}?", "Does anything happen when {}?", "Is there a problem if {}?", "What can I expect when {}?",
        "What occurs if {}?", "Tell me what it does if {}.", "Do running answers of the server end when {}?", "Does the server stop when {}?",
        "I wonder what happens when {}.", "Will the server survive if {}?", "How does the server react if {}?", "And when {}?",
        "Should I worry if {}?", "How does it cope when {}?", "Am I in trouble if {}?", "Can I carry on if {}?", "What do users see when {}?",
        "What am I to do when {}?", "Is it a disaster if {}?"]
THAT = ["Is it true that {}?", "Is it so that {}?", "Do you know whether {}?", "Do you know if {}?", "I wonder if {}.", "Tell me whether {}.",
        "Tell me if {}.", "Can you tell me if {}?", "Could you say whether {}?", "I think {}.", "I heard that {}.", "Someone said that {}.",
        "{}, right?", "{}, is that so?", "{}, yes or no?", "{}?", "Is it right that {}?", "Can it be that {}?", "Does it mean that {}?", "So {}?",
        "I am not sure whether {}.", "Would you say that {}?", "I want to know whether {}."]
LINE = ["What does \"{}\" mean in a plan?", "What does \"{}\" in the plan mean?", "In a plan, what does \"{}\" mean?",
        "The plan says \"{}\". What is that?", "tessera plan says \"{}\". What does it mean?", "tessera plan prints \"{}\". What is that?",
        "How do I read \"{}\" in a plan?", "Explain \"{}\" in a plan.", "Why does the plan say \"{}\"?",
        "What is \"{}\" in the output of tessera plan?", "What is meant by \"{}\" in a plan?", "I see \"{}\" in the plan. What does it mean?",
        "My plan has a line with \"{}\". Explain it.", "Under the table of the plan stands \"{}\". Why?", "The line \"{}\" of a plan, what is it?",
        "What does {} mean in a plan?", "In the plan, {}?", "What does the line {} of the plan tell me?", "tessera plan: {}, what is that?"]
AND = ["And {}?", "And {}?", "And {}?", "and {}", "What about {}?", "What about {}?", "How about {}?", "And what about {}?", "And for {}?",
       "The same for {}?", "And how about {}?", "Now {}.", "Then {}?", "Also {}?", "Same question for {}."]


def ask(rng: random.Random, frames: list, phrase: str) -> str:
    """The phrase in one of the frames, with a capital where the frame begins with it."""
    text = rng.choice(frames).format(phrase)
    return text[0].upper() + text[1:]


def and_one(draw):
    """What a later turn may ask after this one: "and --host?" """
    def follow(rng: random.Random) -> tuple:
        phrase, answer = draw(rng)
        return ask(rng, AND, phrase), answer
    return follow
