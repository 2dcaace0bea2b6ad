//! Programs that are asked for ahead of time.

use super::*;

#[test]
fn prepared_programs_are_those_that_the_options_can_reach() {
    let decoder = decoder();
    let mut options = options(100, 2, 64, true);
    options.hidden_states = true;
    let prepared = |prepare| {
        let PreparedPrograms { at_load, in_background } =
            options.prepared_programs(&decoder, prepare).unwrap();
        assert!(in_background.is_empty(), "{in_background:?}");
        names(&at_load)
    };
    assert_eq!(prepared(Prepare::OnDemand), ["64@256", "1@256"]);
    assert_eq!(prepared(Prepare::Generation), ["1@256", "1x2@256", "64@256", "64+1@256"]);
    assert_eq!(prepared(Prepare::Everything), names(&options.programs(&decoder).unwrap()));
    assert_eq!(prepared(Prepare::Everything).len(), 9);

    let chunks = with_chunks(500, 1, &[16, 32, 128], false);
    let on_demand = chunks.prepared_programs(&decoder, Prepare::OnDemand).unwrap();
    assert_eq!(names(&on_demand.at_load), ["16@256", "1@256"]);
    assert_eq!(names(&on_demand.in_background), ["128@256", "32@256"]);
}

#[test]
fn the_programs_of_the_next_length_are_announced_before_a_sequence_needs_them() {
    let decoder = decoder();
    // Lengths of 256 and 576.
    let mut driver = Driver::new(&decoder, &options(512, 2, 64, false));
    driver.sequences = vec![driver.session.open().unwrap(), driver.session.open().unwrap()];
    driver.step(&[(0, 64, Asks::Next)]);
    for _ in 0..127 {
        driver.step(&[(0, 1, Asks::Next)]);
    }
    assert!(driver.announced().is_empty(), "a quarter of the length is left: {:?}", driver.announced());
    driver.step(&[(0, 1, Asks::Next), (1, 1, Asks::Next)]);
    assert_eq!(names(&driver.announced()), ["1x2@576"]);
    for _ in 0..65 {
        driver.step(&[(0, 1, Asks::Next)]);
    }
    assert_eq!(names(&driver.announced()), ["1@576", "1x2@576"]);
    assert!(driver.asked().iter().any(|shape| shape.length == 576));

    // A prompt that comes chunk by chunk, and the text behind it.
    let mut driver = Driver::new(&decoder, &options(512, 1, 64, false));
    driver.sequences = vec![driver.session.open().unwrap()];
    for _ in 0..5 {
        driver.step(&[(0, 64, Asks::Next)]);
    }
    driver.step(&[(0, 1, Asks::Next)]);
    assert_eq!(names(&driver.announced()), ["1@576", "64@576"]);
    // At the last length nothing comes after.
    for _ in 0..190 {
        driver.step(&[(0, 1, Asks::Next)]);
    }
    assert_eq!(driver.announced().len(), 2);
}

#[test]
fn programs_of_one_step_are_requested_together() {
    let decoder = decoder();
    let mut driver = Driver::new(&decoder, &with_chunks(512, 2, &[16, 128], false));
    driver.sequences = vec![driver.session.open().unwrap(), driver.session.open().unwrap()];
    driver.step(&[(0, 300, Asks::Next), (1, 1, Asks::Next)]);
    let together = std::mem::take(&mut driver.asked.record().together);
    assert_eq!(together.iter().map(names).collect::<Vec<_>>(), [["128+1@256", "128@256", "16@640"]]);
    // Programs that are needed alone are requested at their pass.
    driver.step(&[(0, 1, Asks::Next), (1, 1, Asks::Next)]);
    assert!(driver.asked.record().together.is_empty());
}

#[test]
fn a_short_sequence_returns_to_its_bucket_after_a_pass_with_a_long_one() {
    let decoder = decoder();
    let mut driver = Driver::new(&decoder, &options(512, 2, 64, false));
    driver.sequences = vec![driver.session.open().unwrap(), driver.session.open().unwrap()];
    let last = |driver: &Driver| driver.asked.record().ran.last().unwrap().to_string();
    driver.step(&[(0, 1, Asks::Next)]);
    driver.step(&[(1, 300, Asks::Next)]);
    driver.step(&[(0, 1, Asks::Next), (1, 1, Asks::Next)]);
    assert_eq!(last(&driver), "1x2@576");
    driver.step(&[(0, 1, Asks::Next)]);
    assert_eq!(last(&driver), "1@576", "states are not copied to and fro");
    for _ in 0..63 {
        driver.step(&[(0, 1, Asks::Next)]);
    }
    assert_eq!(last(&driver), "1@256");
    // Nothing waits for it: a program that is not there is announced, and the long one used until it is.
    driver.step(&[(0, 1, Asks::Next), (1, 1, Asks::Next)]);
    driver.session.close(driver.sequences.remove(1)).unwrap();
    driver.sequences.push(driver.session.fork(driver.sequences[0]).unwrap());
    for _ in 0..80 {
        driver.step(&[(0, 1, Asks::Next), (1, 1, Asks::Next)]);
    }
    assert_eq!(last(&driver), "1x2@576");
    assert!(names(&driver.announced()).contains(&"1x2@256".to_owned()), "{:?}", driver.announced());
}
